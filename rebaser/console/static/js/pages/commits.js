// The commits of a change set, the newest first.

import { html } from "../html.js";
import { base, changeSetHead, commitAddress, commitColumns, fullName, headSource, kindText, requestLine } from "../change_set.js";
import { address, bytes, count, plural } from "../format.js";
import { sizePick, sized, table, traceLink } from "../parts.js";

export function what(at, row) {
  const parts = [];
  if (row.from) {
    const word = { create: "from", replay: "on" }[row.kind] ?? "applied";
    parts.push(html`<span>${word} <a href=${`/change-sets/${at.path.workspace}/${row.from.changeSetId}`}>${row.from.changeSetId}</a>@${row.from.position}</span>`);
  }
  if (row.reverts) parts.push(html`<span>reverts ${row.reverts.first === row.reverts.last ? row.reverts.first : `${row.reverts.first} to ${row.reverts.last}`}</span>`);
  parts.push(...row.requests.map(requestLine));
  if (row.requestCount > row.requests.length) parts.push(html`<span class="dim">and ${plural(row.requestCount - row.requests.length, "more request", "more requests")}</span>`);
  return html`<span class="stack">${parts}</span>`;
}

// The commit up to which derived values are up to date, where that is not the commit itself.
const covers = (at, row) => (!row.covers || row.covers === row.position ? "" : html`<a href=${commitAddress(at, row.covers)}>${row.covers}</a>`);

const COLUMNS = (at, now, traceUrl) => [
  ...commitColumns(at, now),
  { title: "What", cell: kindText },
  { title: "Who and why", kind: "wide most", cell: (row) => what(at, row) },
  { title: "Up to date as of", right: true, level: 3, cell: (row) => covers(at, row) },
  { title: "Size", right: true, level: 3, cell: (row) => bytes(row.bytes) },
  { title: "Values", right: true, level: 2, cell: (row) => (row.changes === null ? "many" : row.changes ? count(row.changes) : "") },
  { title: "Server", level: 3, kind: "server", cell: (row) => html`<span class="mono dim">${row.owner}</span>` },
  ...(traceUrl ? [{ title: "Trace", level: 2, cell: (row) => traceLink(traceUrl, row.trace) }] : []),
];

function size(history) {
  if (history === null) return null;
  return html`<p class="facts"><span>${plural(history.commits, "message")} in the log, ${bytes(history.bytes)}</span>
    ${history.since ? html`<span>readable since ${history.since.slice(0, 16).replace("T", " ")} UTC</span>` : null}</p>`;
}

export const page = {
  title: (at) => `Commits of ${fullName(at)}`,
  needs: ["head"],
  sources: (at) => ({
    head: headSource(at),
    commits: { path: address(base(at, "/commits"), sized({ before: at.query.before, limit: at.query.limit }, 200)) },
    size: { path: base(at, "/history-size") },
  }),
  outdated: ({ head, commits }, at) => (!at.query.before && head && commits && head.lastCommit > (commits.rows[0]?.position ?? 0) ? ["commits"] : []),
  view(at, { head, commits, size: history }, tools) {
    return html`${changeSetHead(at, head, "/commits")}${size(history)}
      ${commits === null
        ? tools.pending("commits")
        : html`<section>${table({ label: "Commits", columns: COLUMNS(at, head.at, commits.traceUrl), rows: commits.rows, key: (row) => row.position, empty: "There is no commit yet." })}
          <nav class="pager" aria-label="Pages">
            ${commits.next || at.query.before ? sizePick(at, tools, sized(at.query, 200).limit || 50, 200) : null}
            ${at.query.before ? html`<a class="button" rel="prev" href=${address(at.pathname, at.query, { before: "" })}>Newest</a>` : null}
            ${commits.next ? html`<a class="button" rel="next" href=${address(at.pathname, at.query, { before: commits.next })}>Older</a>` : null}
          </nav></section>`}`;
  },
};
