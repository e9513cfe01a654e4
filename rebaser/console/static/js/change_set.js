// What all pages of one change set share: its head with the tabs, and how values and definitions look.

import { html, keyed } from "./html.js";
import { address, ago, age, clock, count, plural } from "./format.js";
import { badge, icon, marks, notice, oldNotice } from "./parts.js";

export const base = (at, tab = "") => `/change-sets/${at.path.workspace}/${at.path.changeSet}${tab}`;
export const valueAddress = (at, id) => address(base(at, "/value"), { id });
export const commitAddress = (at, position) => address(base(at, "/commit"), { at: position });
export const headSource = (at) => ({ path: base(at), live: true });
export const fullName = (at) => `${at.path.workspace}/${at.path.changeSet}`;

// Those of the sources `names` that are of an older position than the newest commit, also if they were not there then.
export const olderThan = (head, tools, ...names) => (head ? names.filter((name) => tools.positionOf(name) < head.lastCommit) : []);

// The first columns of a table of commits.
export const commitColumns = (at, now) => [
  { title: "Commit", kind: "narrow", cell: (row) => html`<a class="row-link" href=${commitAddress(at, row.position)}>${row.position}</a>` },
  { title: "When", kind: "when", cell: (row) => html`<span title=${row.time}>${ago(row.time, now)}</span>` },
];

const TABS = (head, tab) => [
  ["", "Values"],
  ...(head.target ? [["/changes", `Changes ${count(head.changes)}`]] : []),
  ...(head.conflicts || tab === "/conflicts" ? [["/conflicts", `Conflicts ${count(head.conflicts)}`]] : []),
  ["/commits", "Commits"],
  ["/updates", "Updates"],
  ["/queue", head.pending ? `Queue ${count(head.pending)}` : "Queue"],
  ["/explain", "Why it waits"],
];

function facts(at, head) {
  const list = [];
  if (head.target) list.push(html`<span>branch of <a href=${`/change-sets/${at.path.workspace}/${head.target}`}>${head.target}</a>@${head.base}, ${plural(head.changes, "change")}</span>`);
  else if (head.from) list.push(html`<span>created from <a href=${`/change-sets/${at.path.workspace}/${head.from.changeSetId}`}>${head.from.changeSetId}</a>@${head.from.position}</span>`);
  if (head.lastCommit) list.push(html`<span>last commit <a href=${commitAddress(at, head.lastCommit)}>${head.lastCommit}</a>, ${ago(head.lastCommitTime, head.at)}</span>`);
  else list.push(html`<span>no commit yet</span>`);
  if (head.pending) list.push(html`<span>${plural(head.pending, "request")} in the queue${head.waiting >= 1 ? `, for ${age(head.waiting)}` : ""}</span>`);
  if (head.debt) list.push(html`<span>${head.update ? "an update runs" : "an update is due"}</span>`);
  if (head.lastCommit) {
    const { workspace, changeSet } = at.path;
    list.push(html`<a href=${address("/compare", head.target ? { workspace, a: head.target, b: changeSet } : { workspace, a: changeSet })}>compare with ${head.target || "another one"}</a>`);
  }
  return list;
}

// The head of a page. `more`: what stands behind the tabs, for instance a value.
export function changeSetHead(at, head, tab) {
  return html`${oldNotice(head.trouble, clock(head.at))}
    ${head.problem ? notice("bad", "alert", "Its log cannot be read", head.problem, "alert") : null}
    <div class="object-head">
      <p class="crumbs"><a href="/change-sets">Change sets</a> / <a href=${address("/change-sets", { q: `${at.path.workspace}/` })}>${at.path.workspace}</a> /</p>
      <div class="object-title"><h1 tabindex="-1">${at.path.changeSet}</h1>${badge(head.state)}<span class="marks">${marks(head)}</span></div>
      <p class="facts">${facts(at, head)}</p>
    </div>
    <nav class="tabs" aria-label="Parts of the change set">
      ${TABS(head, tab).map(([path, word]) => keyed(path, html`<a href=${base(at, path)} aria-current=${path === tab ? "page" : null}>${word}</a>`))}
    </nav>`;
}

// The groups of an id, or of a group of ids, as links to their values.
export function crumbs(at, id) {
  const parts = id.split("/").slice(0, -1);
  const link = (prefix, word) => html`<a href=${address(base(at), at.query, { prefix, id: "", after: "" })}>${word}</a>`;
  return html`<p class="crumbs mono">${link("", "all")} / ${parts.map((part, index) => {
    const to = `${parts.slice(0, index + 1).join("/")}/`;
    return html`<span>${to === id ? html`<strong>${part}</strong>` : link(to, part)} / </span>`;
  })}</p>`;
}

// An id: the last part stands out, since many ids begin alike.
export function idText(id, from = 0) {
  const cut = Math.max(id.lastIndexOf("/", id.length - 2) + 1, from);
  return html`<span class="id"><span class="dim">${id.slice(from, cut)}</span>${id.slice(cut)}</span>`;
}

export const idLink = (at, id, from = 0) => html`<a class="row-link" href=${valueAddress(at, id)}>${idText(id, from)}</a>`;

// A value in a table: its text, or why there is none.
export function valueCell(row) {
  if (row.error) return html`<span class="fault"><strong>${row.error.code}</strong> ${row.error.message}</span>`;
  if (row.state === "unset" || row.state === "missing") return "";
  return html`<span class="mono clip">${row.text}</span>`;
}

export const definitionCell = (text) => (text === null || text === undefined ? "" : html`<span class="mono clip dim">${text}</span>`);

// One line about who did something: author, message, request.
export function requestLine(request) {
  const failed = request.outcome !== "success";
  return html`<span class="request">
    ${failed ? badge("error", request.code ?? request.outcome) : null}
    <strong>${request.author || "no author"}</strong>
    ${request.message ? html`<span>“${request.message}”</span>` : null}
    <span class="dim">${failed ? request.reason : plural(request.updates, "update")}</span>
    <span class="mono dim">${request.requestId}</span>
  </span>`;
}

const KINDS = {
  create: ["created", "split"],
  rebase: ["edits", "arrow"],
  replay: ["rebased", "down"],
  dvu: ["derived values", "turn"],
  attempt: ["attempt", "alert"],
  checkpoint: ["checkpoint", "shield"],
  mark: ["mark", "lock"],
};

export function kindText(entry) {
  const [word, picture] = KINDS[entry.kind] ?? [entry.kind, "ring"];
  return html`<span class="badge calm">${icon(picture)}<span>${entry.mark ?? word}</span></span>`;
}

export const shown = (part, all, what) => (part < all ? html`<p class="dim">The first ${count(part)} of ${count(all)} ${what}.</p>` : null);
