// The values of a change set: a tree by the slashes of ids, or a list of those that match.

import { html } from "../html.js";
import { base, changeSetHead, crumbs, definitionCell, fullName, headSource, idLink, olderThan, valueCell } from "../change_set.js";
import { file } from "../data.js";
import { address, count, plural } from "../format.js";
import { manage } from "../manage.js";
import { badge, chips, icon, pick, search, sizePick, sized, table } from "../parts.js";

const FILTERS = [["all", "All"], ["error", "In error"], ["stale", "Stale"]];
const KINDS = [["any", "Any kind"], ["derived", "Derived"], ["set", "Set"], ["unset", "Unset"]];

// Chooses the function that derives the values.
function functionPick(at, tools, { functions }) {
  const { function: now = "" } = at.query;
  if (!now && (!functions.length || ["set", "unset"].includes(at.query.kind))) return null;
  const choices = [["", "any"], ...functions.map((one) => [one.name, `${one.name} (${count(one.count)})`])];
  if (now && !functions.some((one) => one.name === now)) choices.push([now, now]);
  return pick("Function", choices, now, (name) => tools.go(address(at.pathname, at.query, { function: name, after: "" })));
}

function groupCell(at, row, prefix) {
  const name = row.group.slice(prefix.length);
  return html`<a class="row-link group" href=${address(at.pathname, at.query, { prefix: row.group, after: "" })}>${icon("arrow")}<span>${name}</span></a>`;
}

function groupState(row) {
  return html`<span class="marks">${[
    row.errors ? badge("error", `${count(row.errors)} in error`) : null,
    row.stale ? badge("stale", `${count(row.stale)} stale`) : null,
  ]}</span>`;
}

const COLUMNS = (at, { prefix }) => [
  { title: "Id", cell: (row) => (row.group ? groupCell(at, row, prefix) : idLink(at, row.id, prefix.length)) },
  { title: "State", cell: (row) => (row.group ? groupState(row) : badge(row.state)) },
  { title: "Value", kind: "grow", cell: (row) => (row.group ? html`<span class="dim">${plural(row.count, "value")}</span>` : valueCell(row)) },
  { title: "Definition", level: 2, kind: "grow", cell: (row) => (row.group ? "" : definitionCell(row.definition)) },
];

function summary(values) {
  return html`<p class="facts">
    <span>${plural(values.total, "value")}</span>
    ${values.errors ? html`<span>${badge("error", `${count(values.errors)} in error`)}</span>` : null}
    ${values.stale ? html`<span>${badge("stale", `${count(values.stale)} stale`)}</span>` : null}
    <span class="dim">as of commit ${values.position}</span>
  </p>`;
}

export const page = {
  title: (at) => fullName(at),
  needs: ["head"],
  sources: (at) => ({ head: headSource(at), values: { path: address(base(at, "/values"), sized(at.query)) } }),
  outdated: ({ head }, at, tools) => olderThan(head, tools, "values"),
  status: (head) => `${head.changeSetId} is ${head.state}`,
  view(at, { head, values }, tools) {
    return html`${changeSetHead(at, head, "")}
      <div class="filters">
        ${search(at, tools, { label: "Search values", hint: "Search ids, or a pattern: cart/*/price" })}
        ${chips(at, "state", FILTERS, "State", values ? { all: values.total, error: values.errors, stale: values.stale } : {})}
        ${chips(at, "kind", KINDS, "Kind")}${values && functionPick(at, tools, values)}
      </div>
      ${values === null ? tools.pending("values") : list(at, head, values, tools)}${manage(at, head, tools)}`;
  },
};

function list(at, head, values, tools) {
  const isSearch = !values.tree;
  return html`<section>
    <div class="section-head">${values.prefix ? crumbs(at, values.prefix) : summary(values)}
      ${isSearch || values.prefix ? html`<span class="dim">${isSearch ? `${count(values.matching)} found` : plural(values.matching, "value")}</span>` : null}
      ${document.documentElement.dataset.values === "hidden" ? null : html`<a class="side" title="Their definitions, as rebaser get --updates prints them" href=${file(address(base(at, "/values.jsonl"), { ...at.query, after: "" }))} download>Download as JSON Lines</a>`}</div>
    ${table({
      label: "Values",
      columns: COLUMNS(at, values),
      rows: values.rows,
      key: (row) => row.group ?? row.id,
      empty: isSearch ? "No value matches." : head.status === "deleted" ? "The change set was deleted." : "The change set has no values here.",
    })}
    <nav class="pager" aria-label="Pages">
      ${values.next || at.query.after ? sizePick(at, tools, sized(at.query).limit || 100) : null}
      ${at.query.after ? html`<a class="button" rel="prev" href=${address(at.pathname, at.query, { after: "" })}>First page</a>` : null}
      ${values.next ? html`<a class="button" rel="next" href=${address(at.pathname, at.query, { after: values.next })}>Next</a>` : null}
    </nav>
  </section>`;
}
