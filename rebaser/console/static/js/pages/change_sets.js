// All change sets: searched, filtered, sorted, a page at a time.

import { file } from "../data.js";
import { html } from "../html.js";
import { address, ago, age, clock, count, plural, rate } from "../format.js";
import { badge, changeSetLink, chips, marks, name, oldNotice, pager, search, sized, table } from "../parts.js";
import { updateText } from "./overview.js";

const FILTERS = [
  ["open", "Open"],
  ["working", "At work"],
  ["waiting", "Waiting"],
  ["due", "Update due"],
  ["unreadable", "Unreadable"],
  ["errors", "With errors"],
  ["conflicts", "In conflict"],
  ["behind", "Behind"],
  ["closed", "Closed"],
  ["all", "All"],
];

const COLUMNS = (data) => [
  { title: "Change set", sort: "name", cell: changeSetLink },
  { title: "State", sort: "urgency", cell: (row) => badge(row.state) },
  { title: "Queue", sort: "queue", right: true, cell: (row) => (row.pending ? html`${count(row.pending)}${row.waiting >= 1 ? html`<span class="dim"> · ${age(row.waiting)}</span>` : null}` : "") },
  { title: "Branch of", level: 2, cell: (row) => (row.target ? html`<a href=${`/change-sets/${row.workspaceId}/${row.target}`}>${row.target}</a><span class="dim">@${row.base}</span>` : "") },
  { title: "Changes", sort: "changes", right: true, level: 2, cell: (row) => (row.target && row.changes ? count(row.changes) : "") },
  { title: "Errors", sort: "errors", right: true, level: 2, cell: (row) => (row.errors ? html`<a class="fault" href=${`/change-sets/${name(row)}?state=error`}>${count(row.errors)}</a>` : "") },
  { title: "Marks", cell: (row) => html`<span class="marks">${marks(row)}</span>` },
  { title: "Commits/s", right: true, level: 3, cell: (row) => (row.commitsPerSecond ? rate(row.commitsPerSecond) : "") },
  { title: "Last commit", sort: "recent", right: true, level: 2, cell: (row) => ago(row.lastCommitTime, data.at) },
  { title: "Last server", level: 3, cell: (row) => html`<span class="mono dim">${row.owner}</span>` },
  { title: "Update", level: 3, kind: "wide", cell: (row) => row.problem || updateText(row) },
];

export const page = {
  title: () => "Change sets",
  sources: (at) => ({ list: { path: address("/change-sets", sized(at.query)), live: true } }),
  status: (data) => `${plural(data.matching, "change set")} found`,
  view(at, { list: data }, tools) {
    const now = at.query.sort ?? "name";
    const sort = {
      now,
      order: now === "name" ? "ascending" : "descending",
      href: (by) => address(at.pathname, at.query, { sort: by === "name" ? "" : by, offset: "" }),
    };
    return html`${oldNotice(data.problem, clock(data.at))}
      <div class="page-head"><h1 tabindex="-1">Change sets</h1><span class="dim">${count(data.total)} in all</span>
        <a class="side" href=${file(address("/change-sets.csv", at.query))} download>Download as CSV</a></div>
      <div class="filters">
        ${search(at, tools, { label: "Search change sets", hint: "Search, for instance: shop draft" })}
        ${chips(at, "state", FILTERS, "Filter", data.counts)}
      </div>
      ${table({ label: "Change sets", columns: COLUMNS(data), rows: data.rows, key: name, sort, empty: at.query.q ? "No change set has such a name." : "No change set is in this state." })}
      ${pager(at, data, tools)}`;
  },
};
