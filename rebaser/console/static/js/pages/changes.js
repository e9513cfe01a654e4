// What a branch changed since its base, what that does to derived values, and applying it.

import { form, outcome, run, tick, whoFields } from "../actions.js";
import { base, changeSetHead, commitAddress, fullName, headSource, idLink, olderThan, valueCell } from "../change_set.js";
import { address, command, count, plural } from "../format.js";
import { html } from "../html.js";
import { badge, icon, notice, pager, sized, table } from "../parts.js";

const side = (text) => (text === null ? html`<span class="dim">does not exist</span>` : html`<span class="mono clip">${text}</span>`);

const COLUMNS = (at, branch) => [
  { title: "Id", cell: (row) => idLink(at, row.id) },
  { title: `At the base, ${branch.target}@${branch.base}`, kind: "grow", cell: (row) => side(row.base) },
  { title: `In ${branch.changeSetId}`, kind: "grow", cell: (row) => (row.ours === null ? badge("deleted", "removed") : side(row.ours)) },
  {
    title: `In ${branch.target} now`,
    kind: "grow",
    cell: (row) => (row.landed ? badge("applied", "the same") : row.moved ? html`${badge("behind", "edited, too")} ${side(row.theirs)}` : html`<span class="dim">unchanged</span>`),
  },
];

// A value that is computed for the first time, or again after an error, has no result until then.
const isComing = ({ after }) => after.state === "stale" && after.text === "null";

const DERIVED = (at) => [
  { title: "Id", cell: (row) => idLink(at, row.id) },
  { title: "Without the changes", kind: "grow", cell: (row) => html`${row.before.state === "ok" ? null : badge(row.before.state)} ${valueCell(row.before)}` },
  { title: "With them", kind: "grow", cell: (row) => html`${row.after.state === "ok" ? null : badge(row.after.state)} ${isComing(row) ? html`<span class="dim">is being computed</span>` : valueCell(row.after)}` },
];

function rebaseBox(at, head, tools) {
  if (!head.behind || head.status !== "open") return null;
  return html`<div class="notice warn">${icon("down")}<div><strong>${head.target} was edited after the base of this branch</strong>
    <p>Bring these edits in before you review.</p>
    ${head.actions
      ? html`<button type="button" class="button" ?disabled=${tools.state.busy} @click=${() =>
          run(tools, "rebase", `${base(at)}/rebase`, {}, (answer) => {
            tools.reload("changes");
            return answer.conflicts ? `Up to date, with ${plural(answer.conflicts, "conflict")}.` : `Up to date with ${head.target}@${answer.base}.`;
          })}>Bring up to date</button>`
      : html`<p class="mono">${command("rebase", [at.path.workspace, at.path.changeSet])}</p>`}
  </div></div>`;
}

const targetCommit = (at, head, position) => commitAddress({ path: { workspace: at.path.workspace, changeSet: head.target } }, position);

function applyBox(at, head, changes, tools) {
  if (head.status === "applied") return html`<p class="dim">The branch is closed: it was applied, in commit <a href=${targetCommit(at, head, head.base)}>${head.base}</a> of ${head.target}.</p>`;
  if (head.status !== "open") return html`<p class="dim">The branch is closed (${head.status}).</p>`;
  if (head.conflicts) {
    return notice("bad", "split", `${plural(head.conflicts, "conflict")} with ${head.target}`, html`Both sides edited ${head.conflicts === 1 ? "the same value" : "the same values"}. <a href=${base(at, "/conflicts")}>Settle ${head.conflicts === 1 ? "it" : "them"}</a>, and then apply.`);
  }
  if (!changes.matching) return null;
  if (!head.actions) return html`<p class="dim">To apply the changes: <span class="mono">${command("apply", [at.path.workspace, at.path.changeSet])}</span></p>`;
  const submit = async (data) => {
    await run(
      tools,
      "apply",
      `${base(at)}/apply`,
      { at: changes.position, targetAt: changes.targetPosition, check: "check" in data, keep: "keep" in data, author: data.author, message: data.message },
      (answer) => {
        return html`Applied to ${head.target} in commit <a href=${targetCommit(at, head, answer.commit)}>${answer.commit}</a>. It can be reverted there.`;
      },
    );
    // Also if it was refused because the target was edited: the page then shows this edit.
    tools.reload("changes");
  };
  return html`<div class="panel">
    <h2>Apply to ${head.target}</h2>
    ${form({
      label: "Apply",
      fields: [
        ...whoFields("what the change is for"),
        tick("check", `only if ${head.target} gets no new errors`, true),
        tick("keep", "keep the branch open"),
      ],
      button: `Apply ${plural(changes.matching, "change")}`,
      submit,
      disabled: tools.state.busy,
    })}
  </div>`;
}

function derived(at, changes) {
  if (changes.derived === null) {
    return html`<p><a class="button" href=${address(at.pathname, at.query, { derived: "yes" })}>Show what it does to derived values</a></p>`;
  }
  return html`<section><div class="section-head"><h2>${plural(changes.derivedCount, "derived value")} with another result</h2><a href=${address(at.pathname, at.query, { derived: "", derivedOffset: "" })}>hide</a></div>
    ${table({ label: "Derived values with another result", columns: DERIVED(at), rows: changes.derived, key: (row) => row.id, empty: "Nothing else changes." })}
    ${pager(at, { offset: changes.derivedOffset, limit: changes.derivedLimit, matching: changes.derivedCount }, null, "derivedOffset")}</section>`;
}

export const page = {
  title: (at) => `Changes of ${fullName(at)}`,
  needs: ["head"],
  sources: (at) => ({ head: headSource(at), changes: { path: address(base(at, "/changes"), sized(at.query)) } }),
  outdated: ({ head, changes }, at, tools) => (head?.behind && changes && !changes.branch.behind ? ["changes"] : olderThan(head, tools, "changes")),
  view(at, { head, changes }, tools) {
    return html`${changeSetHead(at, head, "/changes")}
      ${rebaseBox(at, head, tools)}${outcome(tools, "rebase")}
      ${changes === null ? tools.pending("changes") : body(at, head, changes, tools)}`;
  },
};

function body(at, head, changes, tools) {
  return html`${outcome(tools, "apply")}${applyBox(at, head, changes, tools)}
    <section><div class="section-head"><h2>${plural(changes.matching, "change")} since ${changes.branch.target}@${changes.branch.base}</h2><span class="dim">as of commit ${count(changes.position)}</span></div>
      ${table({ label: "Changes", columns: COLUMNS(at, changes.branch), rows: changes.rows, key: (row) => row.id, empty: head.status === "applied" ? "Since it was applied, nothing was changed." : "The branch has no changes." })}
      ${pager(at, changes, tools)}
    </section>
    ${changes.matching ? derived(at, changes) : null}`;
}
