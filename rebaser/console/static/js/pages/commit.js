// One commit: its requests with what each changed, or the results of an update.

import { choice, field, form, onBranch, outcome, run, whoFields } from "../actions.js";
import { html } from "../html.js";
import { base, changeSetHead, commitAddress, definitionCell, fullName, headSource, idLink, kindText, requestLine, shown, valueCell } from "../change_set.js";
import { address, ago, bytes, plural } from "../format.js";
import { badge, table, traceLink } from "../parts.js";
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
  return commit.edits.map((edit) => {
    const request = commit.requests.find((one) => one.requestId === edit.requestId);
    return html`<section>
        <div class="section-head">${request ? requestLine(request) : null}</div>
        ${edit.changeCount === 0 ? (request?.outcome === "success" ? html`<p class="dim">It changed nothing.</p>` : null) : table({ label: `Changes of request ${edit.requestId}`, columns: CHANGES(at), rows: edit.changes, key: (row) => row.id })}
        ${shown(edit.changes.length, edit.changeCount, "changes")}
      </section>`;
  });
}

// Reverting the edits, all of them or those of one request, here or on a new branch.
function revertForm(at, head, commit, tools) {
  const found = commit.edits.filter((edit) => edit.changeCount).map((edit) => edit.requestId);
  if (!head.actions || !found.length) return null;
  const whose = (id) => commit.requests.find((one) => one.requestId === id)?.author || "no author";
  const submit = ({ request, name, author, message }) => {
    const asked = { at: commit.position, request, author, message };
    if (!name) {
      run(tools, "revert", `${base(at)}/revert`, asked, (answer) => html`${plural(answer.updates, "edit")} reverted in commit <a href=${commitAddress(at, answer.commit)}>${answer.commit}</a>.`);
      return;
    }
    const there = `/change-sets/${at.path.workspace}/${name}`;
    onBranch(tools, "revert", base(at), { name, author }, () =>
      run(tools, "revert", `${there}/revert`, { ...asked, of: at.path.changeSet }, () => tools.go(`${there}/changes?derived=yes`)),
    );
  };
  const here = head.status !== "open" || head.protected ? `${at.path.changeSet} is ${head.protected ? "protected" : "closed"}` : `empty: in ${at.path.changeSet} itself`;
  return html`<details class="panel"><summary>Revert this commit</summary>
    <p class="dim">Each value below gets the definition again that it had before. If one was edited since, nothing is reverted.</p>
    ${form({
      label: "Revert this commit",
      fields: [
        ...(found.length > 1 ? [choice("request", "Which edits", [["", "those of all requests"], ...found.map((id) => [id, `${whose(id)}, ${id}`])])] : []),
        field("name", "On a new branch named", { hint: here, most: 64, required: !here.startsWith("empty") }),
        ...whoFields("why it is reverted"),
      ],
      button: "Revert",
      submit,
      disabled: tools.state.busy,
    })}
  </details>`;
}

export const page = {
  title: (at) => `Commit ${at.query.at ?? ""} of ${fullName(at)}`,
  needs: ["head"],
  object: (at) => at.query.at,
  sources: (at) => ({ head: headSource(at), commit: { path: address(base(at, "/commit"), { at: at.query.at }) } }),
  view(at, { head, commit }, tools) {
    return html`${changeSetHead(at, head, "/commits")}
      ${commit === null
        ? tools.pending("commit")
        : html`<section>
            <div class="object-title"><h2>Commit ${commit.position}</h2>${kindText(commit)}</div>
            <p class="facts"><span title=${commit.time}>${ago(commit.time, head.at)}</span><span>by server <span class="mono">${commit.owner}</span></span>
              ${commit.covers === null ? null : html`<span>derived values cover commit ${commit.covers}</span>`}
              <span>${bytes(commit.bytes)}</span>${traceLink(commit.traceUrl, commit.trace)}
              ${commit.checkpoint ? html`<span>checkpoint ${commit.checkpoint}</span>` : null}</p>
            ${commit.from || commit.reverts ? what(at, { ...commit, requests: [], requestCount: 0 }) : null}
            <p class="facts">
              ${commit.previous ? html`<a rel="prev" href=${address(base(at, "/commit"), { at: commit.previous })}>The commit before</a>` : null}
              <a href=${address(base(at, "/commits"), { before: commit.position + 1 })}>In the list</a>
            </p>
          </section>
          ${outcome(tools, "revert")}${revertForm(at, head, commit, tools)}
          ${edits(at, commit)}
          ${commit.computedCount
            ? html`<section><h3>${plural(commit.computedCount, "derived value")} computed</h3>
                ${table({ label: "Results", columns: COMPUTED(at), rows: commit.computed, key: (row) => row.id })}
                ${shown(commit.computed.length, commit.computedCount, "results")}</section>`
            : null}
          ${!commit.edits.length && !commit.computedCount ? html`<p class="empty">It changed no value.</p>` : null}`}`;
  },
};
