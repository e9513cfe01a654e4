// The conflicts of a branch with its target, side by side, and settling them.

import { field, form, outcome, run, tick } from "../actions.js";
import { base, changeSetHead, fullName, headSource, idLink, olderThan } from "../change_set.js";
import { address, command, plural } from "../format.js";
import { html, keyed } from "../html.js";
import { notice } from "../parts.js";

const text = (definition) => (definition === null ? html`<p class="dim">does not exist</p>` : html`<pre class="block">${definition}</pre>`);

function settle(at, tools, found, ids, body, told) {
  run(tools, "resolve", `${base(at)}/resolve`, { ids, at: found.position, ...body }, (answer) => {
    tools.reload("conflicts");
    return `${plural(answer.updates, "conflict")} settled: ${told}.`;
  });
}

function card(at, head, found, one, tools) {
  const busy = tools.state.busy;
  const take = (side) => html`<button type="button" class="button" ?disabled=${busy} aria-label=${`Take ${side} for ${one.id}`}
    @click=${() => settle(at, tools, found, [one.id], { take: side }, `${one.id} as in ${side}`)}>Take this</button>`;
  return keyed(
    one.id,
    html`<article class="panel conflict">
      <h2>${idLink(at, one.id)}</h2>
      <div class="sides">
        <section><h3>Before, in both</h3>${text(one.base)}</section>
        <section><h3>In ${head.changeSetId}, this branch</h3>${text(one.ours)}${head.actions ? take(head.changeSetId) : null}</section>
        <section><h3>In ${head.target}, its target</h3>${text(one.theirs)}${head.actions ? take(head.target) : null}</section>
      </div>
      ${head.actions
        ? html`<details><summary>Give a new value</summary>${form({
            label: `A new value for ${one.id}`,
            fields: [
              field("value", "Value, as JSON", { hint: 'for instance 9.5 or "tea"', most: 10000, required: true, wide: true }),
              tick("derives", "it is a definition, with function and inputs"),
            ],
            button: "Settle",
            submit: (data) =>
              settle(at, tools, found, [one.id], { [data.derives ? "definition" : "value"]: data.value }, `${one.id} has a new ${data.derives ? "definition" : "value"}`),
            disabled: busy,
          })}</details>`
        : html`<p class="dim mono">${command("resolve", [at.path.workspace, at.path.changeSet, one.id], ["--take", head.target])}</p>`}
    </article>`,
  );
}

function all(at, head, found, tools) {
  if (!head.actions || found.rows.length < 2) return null;
  const ids = found.rows.map((row) => row.id);
  const button = (side) => html`<button type="button" class="button" ?disabled=${tools.state.busy} @click=${() => settle(at, tools, found, ids, { take: side }, `all as in ${side}`)}>Take ${head.target === side ? head.target : head.changeSetId} for the ${ids.length} shown</button>`;
  return html`<p class="buttons">${button(head.changeSetId)}${button(head.target)}</p>`;
}

export const page = {
  title: (at) => `Conflicts of ${fullName(at)}`,
  needs: ["head"],
  sources: (at) => ({ head: headSource(at), conflicts: { path: address(base(at, "/conflicts"), at.query) } }),
  outdated: ({ head }, at, tools) => olderThan(head, tools, "conflicts"),
  view(at, { head, conflicts: found }, tools) {
    return html`${changeSetHead(at, head, "/conflicts")}${outcome(tools, "resolve")}
      ${found === null ? tools.pending("conflicts") : list(at, head, found, tools)}`;
  },
};

function list(at, head, found, tools) {
  if (!found.rows.length) {
    return notice("good", "check", "No conflicts", head.target ? html`<a href=${base(at, "/changes")}>Look at the changes, and apply them to ${head.target}</a>` : "");
  }
  return html`<div class="section-head"><h2>${plural(found.matching, "value")} edited in ${found.branch.target} and here</h2>${all(at, head, found, tools)}</div>
    ${found.rows.map((one) => card(at, head, found, one, tools))}
    ${found.next ? html`<nav class="pager" aria-label="Pages"><a class="button" rel="next" href=${address(at.pathname, at.query, { after: found.next })}>Next</a></nav>` : null}`;
}
