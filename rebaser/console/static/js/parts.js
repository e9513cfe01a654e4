// What several pages show: icons, badges, tables, filters, pages of a list, troubles.

import { html, keyed, svg } from "./html.js";
import { sparkline } from "./chart.js";
import { address, clock, count, plural } from "./format.js";
import { remember, remembered } from "./kept.js";

const PATHS = {
  check: "M3.5 8.5l3 3 6-7",
  cross: "M4 4l8 8M12 4l-8 8",
  clock: "M8 4.5V8l2.5 1.5M14 8A6 6 0 112 8a6 6 0 0112 0z",
  turn: "M13 8a5 5 0 11-1.6-3.7M13 2.5V5h-2.5",
  half: "M8 2a6 6 0 100 12A6 6 0 008 2zM8 2v12",
  pulse: "M1.5 8.5h3l2-5 3 9 2-4h3",
  ring: "M14 8A6 6 0 112 8a6 6 0 0112 0z",
  dash: "M4 8h8",
  lock: "M4 7.5h8v5.5H4zM5.5 7.5V5.5a2.5 2.5 0 015 0v2",
  split: "M8 14V9M8 9L4 5V2M8 9l4-4V2",
  down: "M8 2.5v10M4 9l4 4 4-4",
  shield: "M8 2l5 2v4c0 3-2 5-5 6-3-1-5-3-5-6V4z",
  arrow: "M3 8h10M9 4l4 4-4 4",
  leave: "M6.5 2.5h-4v11h4M7 8h7M11 5l3 3-3 3",
  alert: "M8 2.5L14.5 13.5h-13zM8 6.5v3.5M8 11.9v.1",
};

const STATES = {
  unreadable: ["bad", "cross"],
  waiting: ["warn", "clock"],
  updating: ["info", "turn"],
  due: ["warn", "half"],
  failing: ["bad", "alert"],
  "put off": ["bad", "lock"],
  busy: ["info", "pulse"],
  owned: ["calm", "ring"],
  quiet: ["calm", "dash"],
  ok: ["good", "check"],
  stale: ["warn", "clock"],
  error: ["bad", "cross"],
  unset: ["calm", "dash"],
  missing: ["bad", "cross"],
  open: ["calm", "ring"],
  applied: ["good", "check"],
  abandoned: ["calm", "cross"],
  kept: ["calm", "lock"],
  closed: ["calm", "lock"],
  deleted: ["bad", "cross"],
  conflict: ["bad", "split"],
  behind: ["warn", "down"],
  protected: ["info", "shield"],
  ready: ["good", "check"],
};

const MEANINGS = {
  unreadable: "its log cannot be read",
  waiting: "requests wait, and no commit has come since the last look",
  updating: "a long update of derived values runs",
  due: "an update of derived values has to run",
  busy: "commits arrive",
  owned: "a server keeps it loaded",
  quiet: "nothing to do",
};

export const icon = (name) =>
  html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true">${svg`<path d=${PATHS[name]}></path>`}</svg>`;

// A state as icon and word; colour only repeats what they say.
export function badge(state, word = state) {
  const [tone, picture] = STATES[state] ?? ["calm", "ring"];
  return html`<span class="badge ${tone}" title=${MEANINGS[state] ?? null}>${icon(picture)}<span>${word}</span></span>`;
}

// Whether a branch has changes that can be applied as they are.
export const isReady = (row) => Boolean(row.target && row.changes && !row.conflicts && !row.behind && row.status === "open");

// What makes a branch special, besides what it is doing now.
export function marks(row) {
  const found = [];
  if (row.status !== "open") found.push(row.status === "kept" ? badge("kept", "closed") : badge(row.status));
  if (row.conflicts) found.push(html`<a href=${`/change-sets/${name(row)}/conflicts`}>${badge("conflict", plural(row.conflicts, "conflict"))}</a>`);
  if (row.behind && row.status === "open") found.push(badge("behind"));
  if (row.protected) found.push(badge("protected"));
  if (isReady(row)) found.push(badge("ready", "ready to apply"));
  return found;
}

// A table. `columns`: {name, title, cell: (row) => content, right, level, sort}; a level of 2 or 3 hides it on narrow screens.
export function table({ label, columns, rows, key, sort = null, empty = /** @type {any} */ ("Nothing here.") }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  const kind = (column) => `${column.right ? "right" : ""} ${column.level ? `level-${column.level}` : ""} ${column.kind ?? ""}`.trim() || null;
  const head = (column) =>
    html`<th scope="col" class=${kind(column)} aria-sort=${sort && column.sort === sort.now ? sort.order ?? "descending" : null}>
      ${sort && column.sort ? html`<a href=${sort.href(column.sort)}>${column.title}</a>` : column.title}
    </th>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <caption class="hidden">${label}</caption>
      <thead><tr>${columns.map(head)}</tr></thead>
      <tbody data-rows>
        ${rows.map((row) =>
          keyed(key(row), html`<tr>${columns.map((column) => html`<td class=${kind(column)}>${column.cell(row)}</td>`)}</tr>`),
        )}
      </tbody>
    </table>
  </div>`;
}

// From when on there are samples; that may be later than what a chart could show.
export const since = (series) => (series.at.length ? `since ${clock(series.at[0]).slice(0, 5)}` : "");

export function tile({ label, value, note = "", values = null, series = null, href = "", tone = "" }) {
  const inner = html`<span class="tile-label">${label}</span>
    <span class="tile-value">${value}</span>
    <span class="tile-note">${note}</span>
    ${values ? sparkline(values, `${label} ${since(series)}`, series) : null}`;
  return href ? html`<a class="tile ${tone}" href=${href}>${inner}</a>` : html`<div class="tile ${tone}">${inner}</div>`;
}

// A field that searches while somebody types; the text is in the URL.
export function search(at, tools, { label, name = "q", hint = "" }) {
  return html`<label class="search">
    <span class="hidden">${label}</span>
    <input type="search" data-search placeholder=${hint || label} autocomplete="off" spellcheck="false"
      maxlength="200" .value=${at.query[name] ?? ""}
      @input=${(event) => tools.soon(address(at.pathname, at.query, { [name]: event.target.value, offset: "", after: "" }))}>
  </label>`;
}

// Links that choose one of a few values of a parameter. `choices`: [value, word]. `numbers`: by value, as far as known.
export function chips(at, name, choices, label, numbers = {}, usual = choices[0][0]) {
  const now = at.query[name] ?? usual;
  return html`<nav class="chips" aria-label=${label}>
    ${choices.map(
      ([value, word]) =>
        html`<a class="chip" aria-current=${value === now ? "true" : null}
          href=${address(at.pathname, at.query, { [name]: value === usual ? "" : value, offset: "", after: "" })}>
          ${word}${numbers[value] === undefined ? null : html`<span class="chip-count">${count(numbers[value])}</span>`}
        </a>`,
    )}
  </nav>`;
}

// A field that offers a few values. `choices`: [value, word].
export const pick = (label, choices, now, then) => html`<label class="pick"><span>${label}</span>
  <select class="field" @change=${(event) => then(event.target.value)}>${choices.map(([value, word]) => keyed(value, html`<option value=${value} .selected=${value === now}>${word}</option>`))}</select></label>`;

const SIZES = ["25", "50", "100", "200", "500"];

// The parameters of a list, with the number of rows of a page: that of the address, or the one that was chosen last.
export function sized(query, most = 500) {
  const kept = remembered("rows");
  const size = query.limit || (SIZES.includes(kept) ? kept : "");
  return { ...query, limit: size && Math.min(size, most) };
}

// Chooses the number of rows of a page.
export const sizePick = (at, tools, limit, most = 500) =>
  pick("Rows", [...new Set([...SIZES.filter((size) => Number(size) <= most), String(limit)])].map((size) => [size, size]), String(limit), (size) => {
    remember("rows", size);
    tools.go(address(at.pathname, at.query, { limit: size, offset: "", after: "", before: "" }));
  });

// The pages of a list that is read by offset.
export function pager(at, { offset, limit, matching }, tools, name = "offset") {
  if (matching <= SIZES[0] && offset === 0) return null;
  const last = Math.min(offset + limit, matching);
  const link = (to, rel, word, usable) =>
    usable
      ? html`<a class="button" rel=${rel} href=${address(at.pathname, at.query, { [name]: to })}>${word}</a>`
      : html`<span class="button off" aria-hidden="true">${word}</span>`;
  return html`<nav class="pager" aria-label="Pages">
    ${name === "offset" ? sizePick(at, tools, limit) : null}
    ${link(Math.max(offset - limit, 0), "prev", "Previous", offset > 0)}
    <span>${offset < matching ? `${count(offset + 1)} to ${count(last)} of ${count(matching)}` : matching ? `none of ${count(matching)}` : "none"}</span>
    ${link(offset + limit, "next", "Next", last < matching)}
  </nav>`;
}

// A box with a title and a text. `role`: whether a screen reader reads it at once.
export const notice = (tone, picture, title, text, role = null) => html`<div class="notice ${tone}" role=${role}>${icon(picture)}
  <div><strong>${title}</strong><p>${text}</p></div></div>`;

export function troubleBox(trouble) {
  return notice("bad", "alert", TITLES[trouble.code] ?? "This cannot be shown", trouble.message, "alert");
}

// A link to the trace of a message, if it has one. `url` has a place for its id.
export const traceLink = (url, trace) => (url && trace ? html`<a href=${url.replaceAll("{trace_id}", trace)}>trace</a>` : null);

const TITLES = {
  not_connected: "NATS cannot be reached",
  not_ready: "The installation is not ready",
  not_allowed: "The console may not read this",
  console_away: "The console is away",
  forwarded: "This console is open to everybody",
  no_such_change_set: "There is no such change set",
  no_such_value: "There is no such value",
};

// A note that what is shown is not the newest.
export const oldNotice = (problem, since) =>
  problem ? notice("warn", "alert", `Nothing newer since ${since}`, problem, "alert") : null;

// A trouble with what it is about, for instance the values in conflict.
export const failedBox = (trouble) => html`<div class="notice bad" role="alert" tabindex="-1" data-outcome>${icon("alert")}<div>
  <strong>${trouble.status >= 400 && trouble.status < 500 ? "Nothing was done" : "It is not certain whether this was done"}</strong><p>${trouble.message}</p>
  ${trouble.details?.length ? html`<ul class="details">${trouble.details.map((one) => html`<li><span class="mono">${one.id}</span> ${one.message}</li>`)}</ul>` : null}
</div></div>`;

// A text with its commands, which are between backticks, as code.
export const withCode = (text) => text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : html`<span>${part}</span>`));

export const name = (row) => `${row.workspaceId}/${row.changeSetId}`;

export const changeSetLink = (row) =>
  html`<a class="row-link" href=${`/change-sets/${row.workspaceId}/${row.changeSetId}`}><span class="dim">${row.workspaceId}/</span>${row.changeSetId}</a>`;
