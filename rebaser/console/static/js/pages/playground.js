// The playground of `rebaser dev`: an edit, its check while somebody types, and how long it took to arrive everywhere.

import { choice, field, form, outcome, run } from "../actions.js";
import { get } from "../data.js";
import { html, keyed } from "../html.js";
import { address, count } from "../format.js";
import { badge, icon } from "../parts.js";

// Milliseconds without a key until a formula is checked.
const TYPING = 250;
const EXAMPLES = [
  ["price", "value", "9.5"],
  ["vat", "value", "0.2"],
  ["gross", "formula", "price * (1.0 + vat)"],
];
const KINDS = [["formula", "a formula"], ["value", "a value, as JSON"], ["remove", "nothing: remove it"]];
const PLACE = { workspace: "play", changeSet: "main" };

let timer = 0;
let asked = 0;

function check(tools, form) {
  const data = Object.fromEntries(new FormData(form));
  clearTimeout(timer);
  asked += 1;
  const mine = asked;
  if (data.kind !== "formula" || !String(data.text).trim()) return tools.set({ kind: data.kind, checked: null });
  tools.set({ kind: data.kind });
  timer = setTimeout(async () => {
    const { workspace, changeSet, id, text } = data;
    const checked = await get(address("/playground/check", { workspace, changeSet, id, formula: text })).catch((error) => ({ problem: error.message, inputs: [] }));
    if (mine === asked) tools.set({ checked });
  }, TYPING);
}

function send(tools, data) {
  const { workspace, changeSet, id, kind, text } = data;
  const body = { workspace, changeSet, id };
  if (kind === "remove") body.remove = true;
  else body[kind] = text;
  tools.set({ derived: null });
  run(tools, "send", "/playground/send", body, (answer) => follow(tools, { workspace, changeSet, id }, answer));
}

// What is told of an edit that was applied; meanwhile, its derived values are waited for.
function follow(tools, { workspace, changeSet, id = "" }, answer) {
  const { state } = tools;
  get(address("/playground/covered", { workspace, changeSet, commit: answer.commit })).then(
    (derived) => tools.state === state && tools.set({ derived }),
    (error) => tools.state === state && tools.set({ derived: { problem: error.message } }),
  );
  const base = `/change-sets/${workspace}/${changeSet}`;
  return html`<p>${count(answer.updates)} ${answer.updates === 1 ? "edit" : "edits"} applied after <strong>${answer.ms} ms</strong>, in commit
    <a href=${`${base}/commit?at=${answer.commit}`}>${answer.commit}</a>. ${id ? html`<a href=${address(`${base}/value`, { id })}>Look at ${id}</a>` : html`<a href=${base}>Look at its values</a>`}</p>`;
}

function derivedLine({ derived, done }) {
  if (!done) return null;
  if (!derived) return html`<p class="dim" role="status">Derived values are being computed…</p>`;
  if (derived.problem || !derived.covered) return html`<p class="dim">${derived.problem ?? "Derived values are not up to date yet; does Spark still start?"}</p>`;
  return html`<p role="status">Derived values up to date <strong>${derived.ms} ms</strong> later.</p>`;
}

function checkLine(checked) {
  if (!checked) return null;
  if (checked.problem) return html`<p class="check bad" role="status">${icon("cross")}<span>${checked.problem}</span></p>`;
  return html`<p class="check" role="status">${icon("check")}<span>The formula is valid.</span> ${checked.inputs.map((one) =>
    keyed(one.name, html`<span><span class="mono">${one.id}</span> ${badge(one.state, one.state === "missing" ? "does not exist yet" : one.state)}</span>`))}</p>`;
}

export const page = {
  title: () => "Playground",
  sources: () => ({}),
  view(at, _, tools) {
    const { start = EXAMPLES[2], filled = 0, checked, busy } = tools.state;
    const [id, kind, text] = start;
    const typed = (event) => check(tools, event.target.form);
    const fill = (example) => {
      clearTimeout(timer);
      // A check of what was typed before is not for the example.
      asked += 1;
      tools.set({ start: example, filled: filled + 1, checked: null });
    };
    // A new field for each fill: the viewer may have changed it.
    const anew = (name, one) => keyed(`${name} ${filled}`, one);
    return html`<div class="page-head"><h1 tabindex="-1">Playground</h1><span class="dim">try an edit, and watch it arrive</span></div>
      <p class="dim buttons">An example, in three steps: ${EXAMPLES.map((one) => keyed(one[0], html`<button type="button" class="button" @click=${() => fill(one)}>${one[0]} = ${one[2]}</button>`))}</p>
      <section class="panel" @input=${typed}>
        ${form({
          label: "An edit",
          fields: [
            keyed("workspace", field("workspace", "Workspace", { value: PLACE.workspace, most: 64, required: true })),
            keyed("changeSet", field("changeSet", "Change set", { value: PLACE.changeSet, most: 64, required: true })),
            anew("id", field("id", "Id", { value: id, required: true })),
            anew("kind", choice("kind", "Becomes", KINDS.map(([value, word]) => [value, word, value === kind]))),
            anew("text", html`<label class="labelled wide"><span>Formula or value</span><input class="field mono" name="text" .value=${text} maxlength="4000" autocomplete="off" spellcheck="false"></label>`),
          ],
          button: "Send",
          submit: (data) => send(tools, data),
          disabled: busy,
        })}
        ${checkLine(checked)}
        <p class="dim">Send overwrites what the value is by then, also if somebody else edited it meanwhile. The page of a value refuses that.</p>
      </section>
      ${outcome(tools, "send")}${derivedLine(tools.state)}
      <section class="panel"><h2>The graph of the demo</h2>
        <p class="dim">The Python packages that are installed here, what they require, and what that adds up to. It goes to demo/main.</p>
        <p><button type="button" class="button" ?disabled=${busy} @click=${() => run(tools, "send", "/playground/demo", {}, (answer) => follow(tools, { workspace: "demo", changeSet: "main" }, answer))}>Load it</button></p>
      </section>`;
  },
};
