// One commit: its requests with what each changed, or the results of an update.

import { html, keyed } from "../html.js";
import { base, changeSetHead, definitionCell, fullName, headSource, idLink, kindText, requestLine, shown, valueCell } from "../change_set.js";
import { address, ago, plural } from "../format.js";
import { badge, table } from "../parts.js";
import { what } from "./commits.js";

const CHANGES = (at) => [
  { title: "Id", cell: (row) => idLink(at, row.id) },
  { title: "Before", kind: "grow", cell: (row) => (row.known ? (row.before === null ? html`<span class="dim">did not exist</span>` : definitionCell(row.before)) : html`<span class="dim">unknown</span>`) },
  { title: "After", kind: "grow", cell: (row) => (row.after === null ? badge("deleted", "removed") : html`<span class="mono clip">${row.after}</span>`) },
];

const COMPUTED = (at) => [
  { title: "Id", cell: (row) => idLink(at, row.id) },
  { title: "State", cell: (row) => badge(row.state) },
  { title: "Result", kind: "grow", cell: valueCell },
];

function edits(at, commit) {
  return commit.edits.map((edit, index) => {
    const request = commit.requests.find((one) => one.requestId === edit.requestId);
    return keyed(
      index,
      html`<section>
        <div class="section-head">${request ? requestLine(request) : null}</div>
        ${table({ label: `Changes of request ${edit.requestId}`, columns: CHANGES(at), rows: edit.changes, key: (row) => row.id, empty: "It changed nothing." })}
        ${shown(edit.changes.length, edit.changeCount, "changes")}
      </section>`,
    );
  });
}

export const page = {
  title: (at) => `Commit ${at.query.at ?? ""} of ${fullName(at)}`,
  needs: ["head"],
  sources: (at) => ({ head: headSource(at), commit: { path: address(base(at, "/commit"), { at: at.query.at }) } }),
  view(at, { head, commit }, tools) {
    return html`${changeSetHead(at, head, "/commits")}
      ${commit === null
        ? tools.pending("commit")
        : html`<section>
            <div class="object-title"><h2>Commit ${commit.position}</h2>${kindText(commit)}</div>
            <p class="facts"><span title=${commit.time}>${ago(commit.time, head.at)}</span><span>by server <span class="mono">${commit.owner}</span></span>
              ${commit.covers === null ? null : html`<span>derived values cover commit ${commit.covers}</span>`}
              ${commit.checkpoint ? html`<span>checkpoint ${commit.checkpoint}</span>` : null}</p>
            ${commit.from || commit.reverts ? what(at, { ...commit, requests: [], requestCount: 0 }) : null}
            <p class="facts">
              ${commit.previous ? html`<a rel="prev" href=${address(base(at, "/commit"), { at: commit.previous })}>The commit before</a>` : null}
              <a href=${address(base(at, "/commits"), { before: commit.position + 1 })}>In the list</a>
            </p>
          </section>
          ${edits(at, commit)}
          ${commit.computedCount
            ? html`<section><h3>${plural(commit.computedCount, "derived value")} computed</h3>
                ${table({ label: "Results", columns: COMPUTED(at), rows: commit.computed, key: (row) => row.id })}
                ${shown(commit.computed.length, commit.computedCount, "results")}</section>`
            : null}
          ${!commit.edits.length && !commit.computedCount ? html`<p class="empty">It changed no value.</p>` : null}`}`;
  },
};
