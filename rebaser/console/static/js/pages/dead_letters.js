// The dead letters: requests that could not be processed. Some of them can be sent again, or dropped.

import { outcome, run } from "../actions.js";
import { address, ago, count, plural } from "../format.js";
import { html } from "../html.js";
import { badge, chips, sizePick, sized, table } from "../parts.js";

const chosen = (tools) => tools.state.chosen ?? new Set();

function toggle(tools, sequence, on) {
  const next = new Set(chosen(tools));
  if (on) next.add(sequence);
  else next.delete(sequence);
  tools.set({ chosen: next });
}

// A message that is no request has no id.
const named = (row) => row.requestId || `message ${row.sequence}`;

const COLUMNS = (at, data, tools) => [
  ...(data.actions
    ? [{ title: "Choose", kind: "narrow", cell: (row) => html`<input type="checkbox" aria-label=${`Choose ${named(row)}`} .checked=${chosen(tools).has(row.sequence)} @change=${(event) => toggle(tools, row.sequence, event.target.checked)}>` }]
    : []),
  { title: "Request", cell: (row) => html`<a class="row-link mono" href=${address("/dead-letters/letter", { sequence: row.sequence })}>${named(row)}</a>` },
  { title: "Code", cell: (row) => html`<a href=${address("/dead-letters", at.query, { code: row.code, after: "" })}>${badge("error", row.code)}</a>` },
  { title: "Change set", level: 2, cell: (row) => html`<a href=${`/change-sets/${row.workspaceId}/${row.changeSetId}`}>${row.workspaceId}/${row.changeSetId}</a>` },
  { title: "Reason", level: 2, kind: "grow", cell: (row) => html`<span class="clip">${row.reason}</span>` },
  { title: "Tried", right: true, level: 3, cell: (row) => `${plural(row.attempts, "time")}${row.redrive ? `, redriven ${row.redrive}×` : ""}` },
  { title: "Died", right: true, level: 2, cell: (row) => html`<span title=${row.time}>${ago(row.time, data.at)}</span>` },
];

// Buttons that act on `sequences`; more than one needs the number typed.
export function actButtons(tools, sequences, then) {
  if (!sequences.length) return null;
  const many = sequences.length > 1;
  const ready = !many || Number(tools.state.typed) === sequences.length;
  const act = (what, done) =>
    run(tools, "letters", `/dead-letters/${what}`, { sequences, count: sequences.length }, (answer) => {
      tools.set({ chosen: new Set(), typed: "" });
      then(answer);
      const failed = answer.failed.map((one) => one.message).join("; ");
      return `${count(answer.done)} ${done}${answer.gone ? `, ${count(answer.gone)} gone before` : ""}${failed ? `, ${answer.failed.length} failed: ${failed}` : ""}${answer.unsure.length ? `, and perhaps message ${answer.unsure[0]}` : ""}${answer.left ? `, ${count(answer.left)} not begun: it took too long` : ""}.`;
    });
  return html`<div class=${many ? "panel buttons" : "buttons"}>
    ${many
      ? html`<label class="labelled"><span>To confirm, type the number of dead letters: ${count(sequences.length)}</span>
          <input class="field" inputmode="numeric" .value=${tools.state.typed ?? ""} @input=${(event) => tools.set({ typed: event.target.value })}></label>`
      : null}
    <button type="button" class="button main" ?disabled=${!ready || tools.state.busy} @click=${() => act("redrive", "sent again")}>Send again</button>
    <button type="button" class="button" ?disabled=${!ready || tools.state.busy} @click=${() => act("drop", "dropped")}>Drop for good</button>
  </div>`;
}

// The number of dead letters by code, which also filter.
function codeChips(at, { codes, complete, counted }) {
  if (codes.length < 2 && !at.query.code) return null;
  const numbers = Object.fromEntries(codes.map((one) => [one.code, one.count]));
  const known = codes.map((one) => [one.code, one.code]);
  if (at.query.code && !(at.query.code in numbers)) known.push([at.query.code, at.query.code]);
  return html`<div class="filters">${chips(at, "code", [["", "All codes"], ...known], "Code", { "": counted, ...numbers })}
    ${complete ? null : html`<span class="dim">of the oldest ${count(counted)}</span>`}</div>`;
}

export const page = {
  title: () => "Dead letters",
  needs: ["letters"],
  sources: (at) => ({
    overview: { path: "/overview", live: true },
    letters: { path: address("/dead-letters", sized(at.query, 200)) },
    codes: { path: address("/dead-letters/codes", { workspace: at.query.workspace, changeSet: at.query.changeSet }) },
  }),
  outdated: ({ overview, letters }) => (overview && letters && overview.deadLetters !== letters.total ? ["letters", "codes"] : []),
  status: (data) => plural(data.deadLetters, "dead letter"),
  view(at, { letters: data, codes }, tools) {
    const here = new Set(data.rows.map((row) => row.sequence));
    const sequences = [...chosen(tools)].filter((sequence) => here.has(sequence));
    const some = ["workspace", "changeSet", "code"].map((name) => at.query[name]).filter(Boolean).join(" ");
    return html`<div class="page-head"><h1 tabindex="-1">Dead letters</h1><span class="dim">requests that could not be processed, ${count(data.total)} in all</span>
        ${some ? html`<span>only <strong>${some}</strong> <a href="/dead-letters">show all</a></span>` : null}</div>
      ${codes ? codeChips(at, codes) : null}
      ${outcome(tools, "letters")}${actButtons(tools, sequences, () => tools.reload("letters"))}
      ${table({ label: "Dead letters", columns: COLUMNS(at, data, tools), rows: data.rows, key: (row) => row.sequence, empty: data.complete ? `There are no ${some ? "such " : ""}dead letters.` : "None was found." })}
      ${data.complete ? null : html`<p class="dim">The search took too long; there may be more.</p>`}
      <nav class="pager" aria-label="Pages">
        ${data.next || at.query.after ? sizePick(at, tools, sized(at.query, 200).limit || 50, 200) : null}
        ${at.query.after ? html`<a class="button" rel="prev" href=${address("/dead-letters", at.query, { after: "" })}>First page</a>` : null}
        ${data.next ? html`<a class="button" rel="next" href=${address("/dead-letters", at.query, { after: data.next })}>Next</a>` : null}
      </nav>`;
  },
};
