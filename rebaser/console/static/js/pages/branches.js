// All branches: what each changed, whether it is behind or in conflict with its target.

import { html } from "../html.js";
import { address, ago, clock, count, plural } from "../format.js";
import { chips, marks, name, oldNotice, pager, search, sized, table } from "../parts.js";

const FILTERS = [
  ["open", "Open"],
  ["ready", "Ready to apply"],
  ["conflicts", "In conflict"],
  ["behind", "Behind"],
  ["closed", "Closed"],
  ["all", "All"],
];

const to = (row, tab = "") => `/change-sets/${row.workspaceId}/${row.changeSetId}${tab}`;

const COLUMNS = (data) => [
  { title: "Branch", sort: "name", cell: (row) => html`<a class="row-link" href=${to(row, row.changes ? "/changes" : "")}><span class="dim">${row.workspaceId}/</span>${row.changeSetId}</a>` },
  { title: "State", sort: "conflicts", cell: (row) => html`<span class="marks">${marks(row)}</span>` },
  { title: "Changes", sort: "changes", right: true, cell: (row) => (row.changes ? html`<a href=${to(row, "/changes")}>${count(row.changes)}</a>` : html`<span class="dim">none</span>`) },
  { title: "Target", level: 2, cell: (row) => html`<a href=${`/change-sets/${row.workspaceId}/${row.target}`}>${row.target}</a><span class="dim">@${row.base}</span>` },
  { title: "Follows its target", level: 3, cell: (row) => (row.follow === "auto" ? "by itself" : html`<span class="dim">on rebase</span>`) },
  { title: "Last commit", sort: "recent", right: true, level: 2, cell: (row) => ago(row.lastCommitTime, data.at) },
];

export const page = {
  title: () => "Branches",
  sources: (at) => ({ list: { path: address("/branches", sized(at.query)), live: true } }),
  status: (data) => `${plural(data.matching, "branch", "branches")} found`,
  view(at, { list: data }, tools) {
    const now = at.query.sort ?? "recent";
    const sort = {
      now,
      order: now === "name" ? "ascending" : "descending",
      href: (by) => address(at.pathname, at.query, { sort: by === "recent" ? "" : by, offset: "" }),
    };
    return html`${oldNotice(data.problem, clock(data.at))}
      <div class="page-head"><h1 tabindex="-1">Branches</h1><span class="dim">change sets that can be applied to a target</span></div>
      <div class="filters">
        ${search(at, tools, { label: "Search branches", hint: "Search names of branches and targets" })}
        ${chips(at, "state", FILTERS, "Filter", data.counts)}
      </div>
      ${table({ label: "Branches", columns: COLUMNS(data), rows: data.rows, key: name, sort, empty: at.query.q ? "No branch has such a name." : "No branch is in this state. Create one: rebaser branch WS NAME" })}
      ${pager(at, data, tools)}`;
  },
};
