// Actions: buttons and forms that change something, what became of them, and who acts.

import { html, keyed } from "./html.js";
import { remember, remembered } from "./kept.js";
import { failedBox, icon } from "./parts.js";

// Do something, and remember in the page's state what became of it. `then` gets the answer, and returns what to tell.
// If the viewer has left the page, its answer is not told on another one.
export async function run(tools, name, path, body, then) {
  if (tools.state.busy) return;
  tools.set({ busy: name, failed: null, done: null });
  const { state } = tools;
  try {
    const answer = await tools.act(path, body);
    if (tools.state === state) tools.set({ busy: null, done: { name, told: then(answer) } });
  } catch (error) {
    if (tools.state === state) tools.set({ busy: null, failed: { name, error } });
  }
}

// Create the branch `name` of the change set at `from`, unless an earlier try did, and go on with its first commit. With
// `begin`, the branch begins at this position.
export function onBranch(tools, action, from, { name, author, begin = undefined }, then) {
  if (tools.state.branch === name) return then(tools.state.born);
  return run(tools, action, `${from}/branch`, { name, author, at: begin }, (answer) => {
    tools.set({ branch: name, born: answer.commit });
    queueMicrotask(() => then(answer.commit));
  });
}

// What became of the action `name`.
export function outcome(tools, name) {
  const { busy, failed, done } = tools.state;
  if (busy === name) return html`<p class="dim" role="status">Working…</p>`;
  if (failed?.name === name) return failedBox(failed.error);
  if (done?.name === name && done.told) return html`<div class="notice good" role="status" tabindex="-1" data-outcome>${icon("check")}<div>${done.told}</div></div>`;
  return null;
}

// A form. `submit` gets its fields; `fields` are templates of inputs with names.
export function form({ label, fields, button, submit, disabled = false }) {
  const onSubmit = (event) => {
    event.preventDefault();
    const data = Object.fromEntries(new FormData(event.target));
    if ("author" in data) remember("author", data.author);
    submit(data);
  };
  return html`<form class="form" aria-label=${label} @submit=${onSubmit}>
    ${fields}
    <button type="submit" class="button main" ?disabled=${disabled}>${button}</button>
  </form>`;
}

export const field = (name, label, { value = "", hint = "", most = 1024, required = false, wide = false } = {}) => html`<label class=${wide ? "labelled wide" : "labelled"}>
  <span>${label}</span>
  <input class="field" name=${name} .value=${value} placeholder=${hint} maxlength=${most} ?required=${required} autocomplete="off" spellcheck="false">
</label>`;

export const area = (name, label, { value = "", rows = 4 } = {}) => html`<label class="labelled wide">
  <span>${label}</span>
  <textarea class="field mono" name=${name} rows=${rows} .value=${value} spellcheck="false" required></textarea>
</label>`;

export const choice = (name, label, options) => html`<label class="labelled"><span>${label}</span>
  <select class="field" name=${name}>${options.map(([value, word, selected]) => keyed(value, html`<option value=${value} .selected=${Boolean(selected)}>${word}</option>`))}</select>
</label>`;

export const tick = (name, label, checked = false) => html`<label class="tick"><input type="checkbox" name=${name} ?checked=${checked}><span>${label}</span></label>`;

// Who acts, and why. The author is remembered in this browser.
export const whoFields = (why) => [
  field("author", "Author", { value: remembered("author"), most: 128 }),
  field("message", "Why", { hint: why, wide: true }),
];
