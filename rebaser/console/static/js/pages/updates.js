// The updates of derived values of one change set: what the present one does, and the newest in the log.

import { field, form, outcome, run, whoFields } from "../actions.js";
import { html, keyed, svg } from "../html.js";
import { base, changeSetHead, commitAddress, commitColumns, fullName, headSource, olderThan } from "../change_set.js";
import { count, duration, plural } from "../format.js";
import { icon, notice, table } from "../parts.js";
import { stageText, waitsText } from "./dvu.js";
import { updateText } from "./overview.js";

const STAGES = { plan: "plan", spark: "Spark", absorb: "read", commit: "store" };

const whole = ({ stages }) => Object.values(stages ?? {}).reduce((sum, seconds) => sum + seconds, 0);

// How long each stage took, as text and as a bar that is drawn to the scale of the `longest` update.
function times({ stages }, longest) {
  if (!stages) return "";
  const all = Object.entries(stages);
  let end = 0;
  const bar = all.map(([stage, seconds]) => {
    const wide = (100 * seconds) / longest;
    end += wide;
    return keyed(stage, svg`<rect x=${end - wide} width=${wide} height="8"></rect>`);
  });
  return html`<svg class="stages" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">${bar}</svg>
    <span class="dim">${all.map(([stage, seconds]) => `${STAGES[stage]} ${duration(seconds)}`).join(" · ")}</span>`;
}

const COLUMNS = (at, now, longest) => [
  ...commitColumns(at, now),
  { title: "Values", right: true, cell: (row) => (row.values === null ? "many" : count(row.values)) },
  { title: "Edits since the one before", right: true, level: 2, cell: (row) => (row.edits === null ? "" : plural(row.edits, "commit")) },
  { title: "Stale for", right: true, cell: (row) => (row.waited === null ? "" : duration(row.waited)) },
  ...(longest ? [{ title: "Time by stage", level: 2, cell: (row) => times(row, longest) }] : []),
  { title: "Up to date as of", right: true, level: 2, cell: (row) => html`<a href=${commitAddress(at, row.covers)}>${row.covers}</a>` },
  { title: "Server", level: 3, cell: (row) => html`<span class="mono dim">${row.server}</span>` },
];

function present(head, now) {
  if (!head.update && !head.debt) return notice("good", "check", "No update is due", "");
  const tries = head.update ? stageText(head.update) : waitsText(now);
  return html`<div class=${`notice ${head.update ? "" : "warn"}`}>${icon(head.update ? "turn" : "clock")}<div>
    <strong>${head.update ? html`An update runs: ${updateText(head)}` : now.error || now.text}</strong>
    ${tries ? html`<p>${tries}</p>` : null}<p>${now.advice}</p>${now.server ? html`<p class="dim">on <span class="mono">${now.server}</span></p>` : null}</div></div>`;
}

// Computing derived values again, after a question.
function recompute(at, head, tools) {
  if (!head.actions || head.status !== "open") return null;
  const { asked } = tools.state;
  const what = (name) => (name ? html`all values of the function <span class="mono">${name}</span>` : html`all derived values`);
  const send = () => {
    tools.set({ asked: null });
    run(tools, "recompute", `${base(at)}/recompute`, asked, (answer) => html`Asked for in commit <a href=${commitAddress(at, answer.commit)}>${answer.commit}</a>. The values are stale until they are computed again.`);
  };
  return html`${outcome(tools, "recompute")}<details class="panel"><summary>Recompute derived values</summary>
    <p class="dim">For instance after the code of a function has changed: values that are up to date are otherwise not computed again.</p>
    ${asked
      ? html`<div class="notice warn" role="alertdialog" aria-label="Recompute" tabindex="-1" data-outcome>${icon("alert")}<div><p>Compute ${what(asked.function)} of ${at.path.changeSet} again?</p>
          <p class="buttons"><button type="button" class="button main" @click=${send}>Recompute</button><button type="button" class="button" @click=${() => tools.set({ asked: null })}>Cancel</button></p></div></div>`
      : form({
          label: "Recompute",
          fields: [field("function", "Only values of the function", { hint: "empty: all derived values", most: 200 }), ...whoFields("why they are computed again")],
          button: "Recompute…",
          submit: (data) => tools.set({ asked: data, done: null, failed: null }),
          disabled: tools.state.busy,
        })}</details>`;
}

function body(at, head, updates, tools) {
  const longest = Math.max(0, ...updates.rows.map(whole));
  return html`${present(head, updates.now)}
    <section><h2>The newest updates</h2>
      ${table({ label: "Updates", columns: COLUMNS(at, head.at, longest), rows: updates.rows, key: (row) => row.position, empty: "No update is in the log." })}
      <p class="dim">“Stale for” is the time from the oldest edit that an update took into account to its results.
        ${longest ? "The bars show the times for planning, for Spark (with the wait for it), and for reading and storing the results. A server forgets them when it ends." : ""}
        ${updates.complete ? "" : `The newest ${count(updates.scanned)} commits were searched.`}</p></section>
    ${recompute(at, head, tools)}`;
}

export const page = {
  title: (at) => `Updates of ${fullName(at)}`,
  needs: ["head"],
  sources: (at) => ({ head: headSource(at), updates: { path: base(at, "/updates") } }),
  outdated: ({ head, updates }, at, tools) => (head?.debt && updates ? ["updates"] : olderThan(head, tools, "updates")),
  view: (at, { head, updates }, tools) => html`${changeSetHead(at, head, "/updates")}${updates === null ? tools.pending("updates") : body(at, head, updates, tools)}`,
};
