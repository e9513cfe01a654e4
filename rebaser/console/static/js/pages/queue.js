// The requests that wait for a decision, the oldest first.

import { base, changeSetHead, fullName, headSource } from "../change_set.js";
import { address, ago, bytes, count, plural } from "../format.js";
import { html } from "../html.js";
import { badge, notice, sizePick, sized, table, traceLink } from "../parts.js";

const open = (at, sequence) => address(at.pathname, at.query, { sequence });

function what(row) {
  const updates = row.updates === null ? "updates in a blob" : plural(row.updates, "update");
  const asked = row.kind === "edit" ? updates : row.kind;
  return html`<span class="request">
    ${row.kind === "unreadable" ? badge("unreadable") : html`<strong>${row.author || "no author"}</strong>`}
    ${row.message ? html`<span>“${row.message}”</span>` : null}
    <span class="dim">${row.kind === "unreadable" ? row.problem : asked}</span>
    <span class="mono dim">${row.requestId}</span>
  </span>`;
}

const COLUMNS = (at, now, traceUrl) => [
  { title: "Request", kind: "narrow", cell: (row) => html`<a class="row-link" href=${open(at, row.sequence)}>${row.sequence}</a>` },
  { title: "Waits for", kind: "when", cell: (row) => (row.decided ? html`<span class="dim">decided</span>` : html`<span title=${row.time}>${ago(row.time, now).replace(" ago", "")}</span>`) },
  { title: "Who and why", kind: "most", cell: what },
  { title: "Size", right: true, level: 2, cell: (row) => bytes(row.bytes) },
  ...(traceUrl ? [{ title: "Trace", level: 2, cell: (row) => traceLink(traceUrl, row.trace) }] : []),
];

// One request, with what was sent.
function detail(at, request, tools) {
  const close = html`<a class="side" href=${open(at, "")}>Close</a>`;
  if (request === null) return html`<section><div class="section-head"><h2>Request ${at.query.sequence}</h2>${close}</div>${tools.pending("request")}</section>`;
  const { text, length, whole } = request.payload;
  return html`<section><div class="section-head"><h2>Request ${request.sequence}</h2>${close}</div>
    ${request.problem ? html`<p class="dim">${request.problem}</p>` : null}
    ${text ? html`<pre class="block" tabindex="0">${text}</pre>` : null}
    ${whole ? null : html`<p class="dim">The first ${count([...text].length)} of ${count(length)} characters.</p>`}</section>`;
}

export const page = {
  title: (at) => `Queue of ${fullName(at)}`,
  needs: ["head"],
  sources: (at) => ({
    head: headSource(at),
    queue: { path: address(base(at, "/queue"), sized({ after: at.query.after, limit: at.query.limit }, 200)) },
    ...(at.query.sequence ? { request: { path: address(base(at, "/queued"), { sequence: at.query.sequence }) } } : {}),
  }),
  outdated: ({ head, queue }) => (head && queue && (head.pending || queue.rows.length) ? ["queue"] : []),
  status: (head) => `${plural(head.pending, "request")} in the queue`,
  view(at, { head, queue, request }, tools) {
    return html`${changeSetHead(at, head, "/queue")}
      ${at.query.sequence ? detail(at, request, tools) : null}
      ${queue === null ? tools.pending("queue") : list(at, head, queue, tools)}`;
  },
};

function list(at, head, queue, tools) {
  const late = queue.rows.some((row) => !row.decided) && head.waiting >= 10;
  return html`${late ? notice("warn", "clock", "Requests wait", html`<a href=${base(at, "/explain")}>Why they wait</a>`) : null}
    <section>${table({ label: "Requests in the queue, the oldest first", columns: COLUMNS(at, head.at, queue.traceUrl), rows: queue.rows, key: (row) => row.sequence, empty: at.query.after ? "No request waits behind that one." : "No request waits." })}
    <nav class="pager" aria-label="Pages">
      ${queue.next || at.query.after ? sizePick(at, tools, sized(at.query, 200).limit || 50, 200) : null}
      ${at.query.after ? html`<a class="button" rel="prev" href=${address(at.pathname, at.query, { after: "", sequence: "" })}>First page</a>` : null}
      ${queue.next ? html`<a class="button" rel="next" href=${address(at.pathname, at.query, { after: queue.next, sequence: "" })}>Next</a>` : null}
    </nav></section>`;
}
