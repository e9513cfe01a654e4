// All inputs of a value, or all values that use it, a page at a time.

import { base, changeSetHead, fullName, headSource, idLink, olderThan } from "../change_set.js";
import { address, plural } from "../format.js";
import { html } from "../html.js";
import { chips, pager, search, sized, table } from "../parts.js";
import { DEPENDENTS, INPUTS } from "./value.js";

const SIDES = [["inputs", "Inputs"], ["dependents", "Used by"]];

export const page = {
  title: (at) => `Neighbours of ${at.query.id ?? ""} in ${fullName(at)}`,
  needs: ["head"],
  object: (at) => at.query.id,
  sources: (at) => ({ head: headSource(at), found: { path: address(base(at, "/neighbours"), sized(at.query)) } }),
  outdated: ({ head }, at, tools) => olderThan(head, tools, "found"),
  view(at, { head, found }, tools) {
    const id = at.query.id ?? "";
    return html`${changeSetHead(at, head, "")}
      <div class="section-head"><h2>${at.query.side === "dependents" ? "Values that use" : "Inputs of"} ${idLink(at, id)}</h2>
        <a href=${address(base(at, "/graph"), { id })}>Graph</a></div>
      <div class="filters">${search(at, tools, { label: "Search ids", hint: "Search ids, or a pattern" })}${chips(at, "side", SIDES, "Side")}</div>
      ${found === null ? tools.pending("found") : list(at, found, tools)}`;
  },
};

function list(at, found, tools) {
  const isInputs = found.side === "inputs";
  return html`<section><p class="dim">${plural(found.matching, isInputs ? "input" : "value")}${at.query.q ? " found" : ""}</p>
    ${table({
      label: isInputs ? "Inputs" : "Values that use it",
      columns: isInputs ? INPUTS(at) : DEPENDENTS(at),
      rows: found.rows.map((row, index) => ({ ...row, index: found.offset + index })),
      key: (row) => row.index,
      empty: at.query.q ? "No id matches." : isInputs ? "It has no inputs." : "No value uses it.",
    })}
    ${pager(at, found, tools)}</section>`;
}
