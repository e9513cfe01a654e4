// One value: what it is, why, what it is made of, what depends on it, and who defined it.

import { area, field, form, onBranch, outcome, run, whoFields } from "../actions.js";
import { html, keyed } from "../html.js";
import {
  base, changeSetHead, commitAddress, commitColumns, crumbs, definitionCell, fullName, headSource, idLink, idText, kindText, olderThan, requestLine, valueCell,
} from "../change_set.js";
import { address, ago, count, plural } from "../format.js";
import { badge, icon, table, withCode } from "../parts.js";
import { updateText } from "./overview.js";

export const INPUTS = (at) => [
  { title: "Input", cell: (row) => row.name },
  {
    title: "Id",
    cell: (row) =>
      row.matches === null
        ? idLink(at, row.id)
        : html`<a class="row-link mono" href=${address(base(at), { q: row.id })}>${row.id}</a>`,
  },
  { title: "State", cell: (row) => (row.matches === null ? badge(row.state) : html`<span class="dim">pattern, ${plural(row.matches, "match", "matches")}</span>`) },
  { title: "Value", kind: "grow", cell: (row) => (row.matches === null ? valueCell(row) : "") },
];

export const DEPENDENTS = (at) => [
  { title: "Id", cell: (row) => idLink(at, row.id) },
  { title: "State", cell: (row) => badge(row.state) },
  { title: "Value", kind: "grow", cell: valueCell },
  { title: "Definition", level: 2, kind: "grow", cell: (row) => definitionCell(row.definition) },
];

function why(at, head, value, blame) {
  const tone = { error: "bad", stale: "warn", ok: "good" }[value.state] ?? "";
  return html`<div class="notice ${tone}">
    ${icon({ error: "cross", stale: "clock", ok: "check" }[value.state] ?? "dash")}
    <div>
      <strong>${value.error ? `In error: ${value.error.code}` : { ok: "Up to date", stale: "Not up to date", unset: "Without a value" }[value.state]}</strong>
      <p>${value.why}</p>
      ${value.advice ? html`<p class="dim">What to do: ${advice(at, value)}</p>` : null}
      ${value.state === "stale" ? cause(at, head, blame?.cause) : null}
      ${value.path.length > 1 ? path(at, value.path) : null}
    </div>
  </div>`;
}

// The advice, with links to what it names: the inputs that do not exist, and the page that tells why an update waits.
function advice(at, value) {
  const missing = value.inputs.filter((row) => row.state === "missing");
  const [before, after] = value.advice.split("`rebaser explain WS CS`");
  if (after !== undefined) return html`${before}<a href=${base(at, "/explain")}>Why it waits</a>${after}`;
  return html`${withCode(value.advice)}${missing.map((row) => html`<span> · ${idLink(at, row.id)}</span>`)}`;
}

// Which request made the value stale, and how far the update is.
function cause(at, head, found) {
  return html`${found ? html`<p class="facts"><span>since commit <a href=${commitAddress(at, found.position)}>${found.position}</a>${found.time ? html`, ${ago(found.time, head.at)}` : null}</span>${found.request ? requestLine(found.request) : null}</p>` : null}
    ${head.update ? html`<p>An update runs: ${updateText(head)}</p>` : null}`;
}

// The way from the value to where its trouble began.
function path(at, steps) {
  return html`<ol class="path" aria-label="The way to where the trouble began">${steps.map((row, index) =>
    keyed(`${index} ${row.id}`, html`<li>${index === 0 ? idText(row.id) : idLink(at, row.id)} ${badge(row.state)}
      ${index === steps.length - 1 ? html`<span class="dim">here it began</span>` : null}</li>`),
  )}</ol>`;
}

function definition(value) {
  const { definition: one } = value;
  if (one === null) return null;
  if (one.op !== "derive") return html`<p class="dim">${one.op === "set" ? "It was set by hand." : "It exists without a value."}</p>`;
  return html`<pre class="block" tabindex="0">${one.text}</pre>
    <p class="dim">function <span class="mono">${one.function}</span>${one.isPlain ? "" : ", parameters:"}</p>
    ${one.isPlain ? null : html`<pre class="block" tabindex="0">${one.params}</pre>`}`;
}

function content(value) {
  if (value.value === null) return html`<p class="dim">It has no value.</p>`;
  const { text, length, whole } = value.value;
  return html`<pre class="block value" tabindex="0">${text}</pre>
    ${whole ? null : html`<p class="dim">The first ${count([...text].length)} of ${count(length)} characters.</p>`}`;
}

// A commit of this change set, or of one from which the definition was inherited or copied.
function place(at, changeSetId, position) {
  if (!changeSetId || changeSetId === at.path.changeSet) return html`<a href=${commitAddress(at, position)}>${position}</a>`;
  const there = { path: { ...at.path, changeSet: changeSetId } };
  return html`<a href=${commitAddress(there, position)}>${changeSetId}@${position}</a>`;
}

function origin(at, blame, now) {
  if (!blame?.blame) return html`<p class="dim">The history no longer tells who defined it.</p>`;
  const { changeSetId, position, time, request, copies, lost } = blame.blame;
  return html`<p class="facts">
    ${position ? html`<span>commit ${place(at, changeSetId, position)}</span>` : null}
    ${time ? html`<span title=${time}>${ago(time, now)}</span>` : null}
    ${request ? requestLine(request) : null}
  </p>
  ${lost ? html`<p class="dim">The history does not reach further back: ${lost}.</p>` : null}
  ${[...copies].reverse().map((one) => html`<p class="facts">
    <span>${one.kind === "replay" ? "rebased into" : "applied to"} ${place(at, one.changeSetId, one.position)}</span>
    ${one.request ? requestLine(one.request) : null}
  </p>`)}`;
}

const HISTORY = (at, now) => [
  ...commitColumns(at, now),
  { title: "What", level: 2, cell: kindText },
  { title: "Who", kind: "wide", cell: (row) => row.requests.map(requestLine) },
  { title: "Definition from then on", kind: "grow", cell: (row) => (row.after === null ? badge("deleted", "removed") : definitionCell(row.after.text)) },
];

// The head of a list of which the first ones are shown; it leads to all of them.
const listHead = (at, value, word, side, part, whole) => html`<div class="section-head"><h3>${word} <span class="dim">${count(whole)}</span></h3>
  ${part < whole ? html`<span class="dim">the first ${count(part)}</span><a href=${address(base(at, "/neighbours"), { id: value.id, side })}>All ${count(whole)}</a>` : null}</div>`;

const HOW = {
  other: (row) => html`<span class="mono clip">${row.text}</span>`,
  removed: () => badge("deleted", "does not exist"),
  older: () => html`<span class="dim">an older definition: it has not been brought up to date</span>`,
  unknown: (row) => html`<span class="fault">${row.problem}</span>`,
};

const RELATIONS = { target: "the target", branch: "a branch of this one", sibling: "a branch of the same target" };

const OTHERS = (at, id, now) => [
  { title: "Change set", cell: (row) => html`<a class="row-link" href=${address(`/change-sets/${at.path.workspace}/${row.changeSetId}/value`, { id })}>${row.changeSetId}</a>` },
  { title: "Which is", level: 2, cell: (row) => html`<span class="dim">${RELATIONS[row.relation]}</span>` },
  { title: "Definition there", kind: "grow", cell: (row) => HOW[row.how](row) },
  { title: "Last commit", right: true, level: 2, cell: (row) => ago(row.lastCommitTime, now) },
];

// Which related change sets have another definition.
function others(at, head, elsewhere, tools) {
  if (elsewhere === null) return tools.pending("elsewhere", null);
  const { rows, offset, looked, matching, next } = elsewhere;
  if (!matching) return null;
  return html`<section><h3>In other change sets</h3>
    ${rows.length
      ? table({ label: "Change sets with another definition", columns: OTHERS(at, at.query.id, head.at), rows, key: (row) => row.changeSetId })
      : html`<p class="dim">${next || offset ? "None of these has another definition." : "Neither the target nor an open branch has another definition."}</p>`}
    ${next || offset
      ? html`<nav class="pager" aria-label="Pages of change sets"><span>${count(offset + 1)} to ${count(offset + looked)} of ${plural(matching, "related change set")}</span>
          ${offset ? html`<a class="button" href=${address(at.pathname, at.query, { branches: "" })}>First</a>` : null}
          ${next ? html`<a class="button" href=${address(at.pathname, at.query, { branches: next })}>Go on</a>` : null}</nav>`
      : null}</section>`;
}

// What the form begins with: the value, or the definition without its id.
function startOf(value) {
  const { definition: one } = value;
  if (one?.op !== "derive") return value.value?.whole ? value.value.text : "";
  const inputs = Object.fromEntries(one.inputs.map((input) => [input.name, sources(input)]));
  return JSON.stringify({ function: one.function, inputs, params: "\u0000" }, null, 2).replace('"\\u0000"', () => one.params.replaceAll("\n", "\n  "));
}

function sources(input) {
  const all = input.sources.map((source) => (source.match === undefined ? source.id : { match: source.match }));
  return input.single ? all[0] : all;
}

function editor(at, head, value, tools) {
  if (!head.actions || head.status !== "open") return null;
  const derives = value.definition?.op === "derive";
  if (derives && !value.definition.isWhole) return html`<p class="dim">Its definition (${plural(value.definition.inputCount, "input", "inputs")}) is too large to be edited here. Use <span class="mono">rebaser enqueue --file</span>.</p>`;
  // What somebody edits is what was shown when the form got the focus: a newer value must not slip under it.
  const begun = tools.state.begun ?? { at: value.position, text: startOf(value) };
  const submit = async (data) => {
    const { author, message } = data;
    const edit = { id: value.id, at: begun.at, author, message, [derives ? "definition" : "value"]: data.text };
    if (!data.name) {
      run(tools, "edit", `${base(at)}/edit`, edit, (answer) => {
        tools.set({ begun: null });
        tools.reload("value");
        return html`Defined in commit <a href=${commitAddress(at, answer.commit)}>${answer.commit}</a>.`;
      });
      return;
    }
    const there = `/change-sets/${at.path.workspace}/${data.name}`;
    onBranch(tools, "edit", base(at), { ...data, begin: begun.at }, (born) =>
      run(tools, "edit", `${there}/edit`, { ...edit, at: born }, () => tools.go(`${there}/changes?derived=yes`)),
    );
  };
  const label = `${value.isNew ? "Define" : "Edit"} this value`;
  return html`<details class="panel" @focusin=${() => tools.state.begun ?? tools.set({ begun })} @toggle=${(event) => event.target.open || tools.set({ begun: null })}><summary>${label}</summary>
    ${value.defined > begun.at
      ? html`<p class="notice warn" role="alert">${icon("alert")}<span>It was defined again, in commit ${value.defined}, after you began to edit.
          <button type="button" class="button" @click=${() => tools.set({ begun: null })}>Begin again</button></span></p>`
      : null}
    ${form({
      label,
      fields: [
        area("text", derives ? "Definition, as JSON" : "Value, as JSON", { value: begun.text, rows: derives ? 8 : 2 }),
        field("name", "On a new branch named", { hint: `empty: in ${at.path.changeSet} itself`, most: 64 }),
        ...whoFields("what the edit is for"),
      ],
      button: "Save",
      submit,
      disabled: tools.state.busy,
    })}${outcome(tools, "edit")}
  </details>`;
}

export const page = {
  title: (at) => `${at.query.id ?? ""} in ${fullName(at)}`,
  needs: ["head"],
  object: (at) => at.query.id,
  sources: (at) => {
    const query = { id: at.query.id };
    return {
      head: headSource(at),
      value: { path: address(base(at, "/value"), query) },
      blame: { path: address(base(at, "/blame"), query) },
      elsewhere: { path: address(base(at, "/elsewhere"), { ...query, offset: at.query.branches }) },
      history: { path: address(base(at, "/history"), { ...query, before: at.query.before }) },
    };
  },
  outdated: ({ head, elsewhere }, at, tools) => [
    ...(olderThan(head, tools, "value").length ? ["value", "blame", "history", "elsewhere"] : []),
    // Branches change, too.
    ...(head && elsewhere && head.at - elsewhere.at > 15 ? ["elsewhere"] : []),
  ],
  view(at, { head, value, blame, elsewhere, history }, tools) {
    const id = at.query.id ?? "";
    return html`${changeSetHead(at, head, "")}
      <section>
        ${crumbs(at, id)}
        <div class="object-title"><h2 class="mono">${id.slice(id.lastIndexOf("/") + 1) || id}</h2>${value ? badge(value.state) : null}<a href=${address(base(at, "/graph"), { id })}>Graph</a></div>
      </section>
      ${value === null
        ? html`${tools.pending("value")}${tools.isGone("value") ? editor(at, head, { id, isNew: true, position: tools.positionOf("value") }, tools) : null}${tools.isGone("value") ? others(at, head, elsewhere, tools) : null}`
        : body(at, head, value, { blame, elsewhere, history }, tools)}`;
  },
};

function body(at, head, value, { blame, elsewhere, history }, tools) {
  const derived = value.definition?.op === "derive";
  return html`${why(at, head, value, blame)}${editor(at, head, value, tools)}
    <div class="columns">
      <section><h3>Value</h3>${content(value)}</section>
      <section><h3>Definition</h3>${definition(value)}<h3>Defined by</h3>${blame === null ? tools.pending("blame") : origin(at, blame, head.at)}</section>
    </div>
    ${others(at, head, elsewhere, tools)}
    ${derived
      ? html`<section>${listHead(at, value, "Inputs", "inputs", value.inputs.length, value.inputCount)}
          ${table({ label: "Inputs", columns: INPUTS(at), rows: value.inputs.map((row, index) => ({ ...row, index })), key: (row) => row.index, empty: "It has no inputs." })}</section>`
      : null}
    <section>${listHead(at, value, "Used by", "dependents", value.dependents.length, value.dependentCount)}
      ${table({ label: "Values that use it", columns: DEPENDENTS(at), rows: value.dependents, key: (row) => row.id, empty: "No value uses it." })}</section>
    <section><h3>History</h3>
      ${history === null
        ? tools.pending("history")
        : html`${table({ label: "Commits that defined it", columns: HISTORY(at, head.at), rows: history.rows, key: (row) => row.position, empty: history.complete ? "No commit in the log defines it." : "None of the commits that were searched defines it." })}
          <nav class="pager" aria-label="Pages of the history">
            ${history.complete ? null : html`<span>${plural(history.scanned, "commit")} searched</span>`}
            ${at.query.before ? html`<a class="button" rel="prev" href=${address(at.pathname, at.query, { before: "" })}>Newest</a>` : null}
            ${history.next ? html`<a class="button" rel="next" href=${address(at.pathname, at.query, { before: history.next })}>Go on</a>` : null}
          </nav>`}</section>`;
}
