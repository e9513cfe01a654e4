// The neighbourhood of a value: what it is made of on the left, what is made of it on the right.

import { base, changeSetHead, fullName, headSource, idLink, olderThan, valueAddress } from "../change_set.js";
import { HEIGHT, WIDTH, curve, fit, layout } from "../graph.js";
import { html, keyed, svg } from "../html.js";
import { address, count } from "../format.js";
import { badge, chips } from "../parts.js";

const TONES = { error: "bad", missing: "bad", stale: "warn" };
const SIGNS = { error: "✕", missing: "✕", stale: "◔", unset: "–" };

// As many values as the console expands at once.
const MOST = 20;

const graphAddress = (at, id, expand = []) => address(base(at, "/graph"), { id, depth: at.query.depth, expand: expand.slice(-MOST).join("\n") });

// The values whose neighbours were asked for: the last one is the one that somebody looks at. No id has a line break.
const expandedIn = (at) => (at.query.expand ? at.query.expand.split("\n") : []);

// Where a click on a value leads: it is expanded, or no longer.
function toggled(at, node, data) {
  const others = expandedIn(at).filter((id) => id !== node.id);
  return graphAddress(at, data.id, node.expanded ? others : [...others, node.id]);
}

const chosenIn = (at, data) => data.nodes.find((node) => node.id === expandedIn(at).at(-1)) ?? data.nodes[0];

function box(at, node, place, data, tools) {
  const here = node.id === data.id;
  const chosen = node === chosenIn(at, data);
  // A value that does not exist has no graph; its page offers to define it.
  const leads = here || node.state === "missing";
  const onClick = (event) => {
    if (leads || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    tools.go(graphAddress(at, node.id));
  };
  const text = node.error ? node.error.code : node.state === "missing" ? "missing" : node.text || node.state;
  return keyed(
    node.id,
    svg`<a class=${`node ${TONES[node.state] ?? ""} ${here ? "here" : ""} ${chosen ? "chosen" : ""}`} href=${leads ? valueAddress(at, node.id) : toggled(at, node, data)}
        @click=${onClick} data-id=${node.id} data-state=${node.state} data-level=${node.level} data-center=${chosen ? "yes" : null} aria-expanded=${leads ? null : String(node.expanded)} aria-label=${`${node.id}, ${node.state}, ${text}`} transform=${`translate(${place.x} ${place.y})`}>
      <rect width=${WIDTH} height=${HEIGHT} rx="7"></rect>
      <text x="12" y="19" class="node-id">${fit(node.id, 28)}</text>
      <text x="12" y="36" class="node-text">${SIGNS[node.state] ?? "✓"} ${text.length > 28 ? `${text.slice(0, 27)}…` : text}</text>
    </a>`,
  );
}

function more(at, node, place) {
  const parts = [
    ["inputs", node.moreInputs, place.x + 2, "start"],
    ["dependents", node.moreDependents, place.x + WIDTH - 2, "end"],
  ].filter(([, number]) => number);
  return parts.map(([side, number, x, anchor]) =>
    keyed(
      `${side} ${node.id}`,
      svg`<a class="node-more" data-level=${node.level} href=${address(base(at, "/neighbours"), { id: node.id, side })} aria-label=${`${count(number)} more ${side === "inputs" ? "inputs of" : "values that use"} ${node.id}`}>
        <text x=${x} y=${place.y + HEIGHT + 13} text-anchor=${anchor}>+${count(number)}</text></a>`,
    ),
  );
}

// Arrow keys lead from node to node: up and down in a column, left to inputs and right to what uses them.
function onKey(event, at, tools) {
  const { id, state } = event.target.closest("[data-id]")?.dataset ?? {};
  const places = { c: state === "missing" ? valueAddress : graphAddress, o: valueAddress };
  if (id && places[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.stopPropagation();
    tools.go(places[event.key](at, id));
    return;
  }
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const step = steps[event.key];
  const now = event.target.closest("[data-level]");
  if (!step || !now) return;
  event.preventDefault();
  event.stopPropagation();
  const box_ = now.getBoundingClientRect();
  const level = Number(now.dataset.level) + step[0];
  const others = [...event.currentTarget.querySelectorAll(`${step[0] ? ".node" : ""}[data-level="${level}"]`)].filter((node) => node !== now);
  const away = (node) => node.getBoundingClientRect().top - box_.top;
  const fitting = step[1] ? others.filter((node) => Math.sign(away(node)) === step[1]) : others;
  fitting.sort((one, other) => Math.abs(away(one)) - Math.abs(away(other)))[0]?.focus();
}

// The value that was clicked last, with what the mouse does with Ctrl: a touch screen has no such key.
function strip(at, data) {
  const node = chosenIn(at, data);
  if (node.id === data.id) return null;
  return html`<p class="facts" role="status"><span>${idLink(at, node.id)}</span>${badge(node.state)}
    <a href=${graphAddress(at, node.id)}>Move it to the middle</a><a href=${toggled(at, node, data)}>${node.expanded ? "Hide its neighbours" : "Show its neighbours"}</a></p>`;
}

function drawing(at, data, tools) {
  const { places, width, height } = layout(data.nodes, data.edges);
  const broken = new Set(data.nodes.filter((node) => TONES[node.state] === "bad").map((node) => node.id));
  return html`<div class="scroll graph" tabindex="0" role="region" aria-label="Graph">
    <svg width=${width + 120} height=${height + 40} viewBox=${`-60 -20 ${width + 120} ${height + 40}`} role="group" aria-label=${`Values around ${data.id}`} @keydown=${(event) => onKey(event, at, tools)}>
      ${data.edges.map((edge) =>
        keyed(`${edge.from}\n${edge.to}`, svg`<path class=${broken.has(edge.from) && broken.has(edge.to) ? "edge bad" : "edge"} d=${curve(places.get(edge.from), places.get(edge.to))}></path>`),
      )}
      ${data.nodes.map((node) => box(at, node, places.get(node.id), data, tools))}
      ${data.nodes.flatMap((node) => more(at, node, places.get(node.id)))}
    </svg>
  </div>`;
}

export const page = {
  title: (at) => `Graph of ${at.query.id ?? ""} in ${fullName(at)}`,
  needs: ["head"],
  sources: (at) => ({ head: headSource(at), graph: { path: address(base(at, "/graph"), { id: at.query.id, depth: at.query.depth, expand: at.query.expand }) } }),
  outdated: ({ head }, at, tools) => olderThan(head, tools, "graph"),
  view(at, { head, graph }, tools) {
    return html`${changeSetHead(at, head, "")}
      ${graph === null
        ? tools.pending("graph")
        : html`<section>
            <div class="section-head"><h2>Around ${idLink(at, graph.id)}</h2>${badge(graph.nodes[0].state)}
              ${chips(at, "depth", [["1", "1 step"], ["2", "2 steps"], ["3", "3 steps"], ["4", "4 steps"]], "Steps away", {}, "2")}</div>
            ${drawing(at, graph, tools)}${strip(at, graph)}
            <p class="dim">Inputs are on the left, and values that use it are on the right. Click a value to show its other neighbours, and again to hide them; click it with Ctrl to move it to the middle. The value in the middle opens its page, and +N a list. Keys: Enter for a click, c for the middle, o for the page.</p>
          </section>`}`;
  },
};
