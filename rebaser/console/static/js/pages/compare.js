// The values that differ between two change sets of a workspace, side by side.

import { field, form } from "../actions.js";
import { definitionCell, idText, valueCell } from "../change_set.js";
import { address, count, plural } from "../format.js";
import { html, keyed } from "../html.js";
import { badge, chips, pager, search, sized, table } from "../parts.js";

const chosen = ({ workspace, a, b }) => Boolean(workspace && a && b);
const link = (at, name, tab = "") => `/change-sets/${encodeURIComponent(at.query.workspace)}/${encodeURIComponent(name)}${tab}`;

function side(one, row) {
  if (one.state === "missing") return html`<span class="dim">does not exist</span>`;
  return html`<span class="stack">${[
    html`<span>${one.state === "ok" ? null : badge(one.state)} ${valueCell(one)}</span>`,
    row.kind === "edited" && one.definition ? definitionCell(one.definition) : null,
  ]}</span>`;
}

const COLUMNS = (at) => [
  { title: "Id", cell: (row) => html`<a class="row-link" href=${address(link(at, row.kind === "removed" ? at.query.a : at.query.b, "/value"), { id: row.id })}>${idText(row.id)}</a>` },
  { title: "Differs in", level: 2, cell: (row) => ({ edited: "definition", derived: "result" })[row.kind] ?? `only in ${row.kind === "added" ? at.query.b : at.query.a}` },
  { title: `In ${at.query.a}`, kind: "grow", cell: (row) => side(row.a, row) },
  { title: `In ${at.query.b}`, kind: "grow", cell: (row) => side(row.b, row) },
];

function choose(at, tools) {
  const fields = [["workspace", "Workspace"], ["a", "Change set"], ["b", "Compared with"]];
  return form({
    label: "Choose two change sets",
    fields: fields.map(([name, label]) => keyed(`${name} ${at.query[name]}`, field(name, label, { value: at.query[name] ?? "", most: 64, required: true }))),
    button: "Compare",
    submit: (data) => tools.go(address("/compare", data)),
  });
}

function found(at, data, tools) {
  const { a, b } = at.query;
  const filters = [["all", "All"], ["edited", "Definition"], ["derived", "Only the result"], ["removed", `Only in ${a}`], ["added", `Only in ${b}`]];
  const where = (name, index) => html`<a href=${link(at, name)}>${name}</a>@${data.positions[index]}, ${plural(data.totals[index], "value")}`;
  return html`<p class="facts"><span>${where(a, 0)}</span><span>${where(b, 1)}</span><a href=${address("/compare", { ...at.query, a: b, b: a, kind: "", offset: "" })}>swap</a></p>
    <div class="filters">
      ${search(at, tools, { label: "Search values", hint: "Search ids, or a pattern: cart/*/price" })}
      ${chips(at, "kind", filters, "Filter", data.counts)}
    </div>
    <section>${table({ label: "Values that differ", columns: COLUMNS(at), rows: data.rows, key: (row) => row.id, empty: data.counts.all ? "No value matches." : "All values are the same." })}
      ${pager(at, data, tools)}</section>`;
}

export const page = {
  title: (at) => (chosen(at.query) ? `${at.query.a} and ${at.query.b}` : "Compare"),
  needs: [],
  object: ({ query }) => `${query.workspace} ${query.a} ${query.b}`,
  sources: (at) => (chosen(at.query) ? { compared: { path: address("/compare", sized(at.query)) } } : {}),
  status: (data) => `${count(data.matching)} values differ`,
  view: (at, { compared }, tools) => html`<div class="page-head"><h1 tabindex="-1">Compare</h1><span class="dim">two change sets of a workspace, value by value</span></div>
    ${choose(at, tools)}
    ${compared === undefined ? null : compared === null ? tools.pending("compared") : found(at, compared, tools)}`,
};
