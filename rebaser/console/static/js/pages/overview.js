// The overview: is all well, what is going on, who serves, how full the streams are.

import { html } from "../html.js";
import { address, ago, age, bytes, clock, command, count, plural, rate } from "../format.js";
import { badge, changeSetLink, chips, icon, name, notice, oldNotice, since, table, tile } from "../parts.js";

export function headline(data) {
  const { waiting, unreadable } = data.activities;
  if (!data.serverCount) return ["bad", "No server answers", "Requests wait until one runs: rebaser serve"];
  if (unreadable) return ["bad", `${plural(unreadable, "log")} cannot be read`, html`<a href="/change-sets?state=unreadable">See which, and why</a>`];
  const unready = data.servers.filter((server) => !server.ready).length;
  if (unready) return ["bad", `${plural(unready, "server")} ${unready === 1 ? "is" : "are"} not ready`, "See below"];
  if (waiting) {
    const long = data.longestWaiting >= 1 ? `, the longest for ${age(data.longestWaiting)}` : "";
    return [data.longestWaiting >= 10 ? "warn" : "info", `${plural(waiting, "change set")} ${waiting === 1 ? "waits" : "wait"}${long}`, ""];
  }
  if (data.servers.some((server) => server.trouble)) return ["warn", "A server reports trouble", "See below"];
  if (data.deadLetters) return ["warn", `${plural(data.deadLetters, "request")} could not be processed`, html`<a href="/dead-letters">See why</a>`];
  if (data.withErrors) return ["warn", `${plural(data.withErrors, "change set")} ${data.withErrors === 1 ? "has" : "have"} values in error`, html`<a href="/change-sets?state=errors&sort=errors">See which</a>`];
  if (data.active - data.activities.owned > 0) return ["good", "All well", `${plural(data.active - data.activities.owned, "change set")} at work`];
  return ["good", "All quiet", "No request waits, and no update is due"];
}

const PICTURES = { good: "check", info: "pulse", warn: "clock", bad: "alert" };

function tiles(at, data) {
  const { series } = data;
  return html`<section class="tiles" aria-label="Numbers">
    ${[
      tile({ label: "Requests a second", value: rate(data.requestsPerSecond), values: series.requestsPerSecond, series }),
      tile({ label: "Commits a second", value: rate(data.commitsPerSecond), values: series.commitsPerSecond, series }),
      tile({
        label: "Requests that wait",
        value: count(data.requests),
        values: series.requests,
        series,
        href: "/change-sets?state=waiting&sort=queue",
      }),
      tile({
        label: "The oldest waits for",
        value: data.requests ? age(data.oldestRequest) : "–",
        values: series.oldestRequest,
        series,
        href: "/change-sets?state=waiting&sort=urgency",
      }),
      tile({ label: "Updates due", value: count(data.due), values: series.due, series, href: "/dvu" }),
      tile({ label: "Dead letters", value: count(data.deadLetters), values: series.deadLetters, series, href: "/dead-letters", tone: data.deadLetters ? "bad" : "" }),
      tile({
        label: "Branches in conflict",
        value: count(data.branchesInConflict),
        note: `of ${count(data.branches)} open, ${count(data.branchesBehind)} behind`,
        href: "/branches?state=conflicts",
      }),
    ]}
  </section>
  <div class="filters under">${chips(at, "span", [["5", "5 minutes"], ["30", "30 minutes"]], "Time that the charts show")}<span class="dim">${since(series)}</span></div>`;
}

const WORKING = (data) => [
  { title: "Change set", cell: changeSetLink },
  { title: "State", cell: (row) => badge(row.state) },
  { title: "Queue", right: true, cell: (row) => (row.pending ? count(row.pending) : "") },
  { title: "Waits", right: true, cell: (row) => (row.state === "waiting" ? age(row.waiting) : "") },
  { title: "Commits/s", right: true, level: 2, cell: (row) => (row.commitsPerSecond ? rate(row.commitsPerSecond) : "") },
  { title: "Last commit", right: true, level: 2, cell: (row) => ago(row.lastCommitTime, data.at) },
  { title: "Update", level: 2, cell: (row) => row.problem || updateText(row) },
];

export function updateText(row) {
  if (row.update === null) return row.debt ? "due" : "";
  const { done, total, seconds } = row.update;
  const progress = total === null ? "planning" : `${count(done)} of ${count(total)}`;
  return html`<span class="progress">${total ? html`<progress max=${total} .value=${done}></progress>` : null}${progress}, ${age(seconds)}</span>`;
}

const SERVERS = [
  { title: "Server", cell: (row) => html`<span class="mono">${row.id}</span>${row.sweeper ? html` <span class="tag" title="It looks for change sets that have work but no server">sweeper</span>` : null}` },
  { title: "State", cell: (row) => (row.ready ? badge("ok", "ready") : badge("error", "not ready")) },
  {
    title: "Change sets",
    right: true,
    cell: (row) => html`<span class="progress"><progress max=${Math.max(row.slots, 1)} .value=${row.owned} aria-label="slots taken"></progress>${count(row.owned)} of ${count(row.slots)}</span>`,
  },
  { title: "Spark", level: 2, cell: (row) => row.dvu },
  { title: "Durability", level: 3, cell: (row) => row.durability ?? html`<span class="dim">not set</span>` },
  { title: "Version", level: 3, cell: (row) => row.version },
  { title: "Trouble", level: 2, kind: "wide", cell: (row) => row.trouble },
];

const DURABILITY = {
  memory: "a restart of NATS loses the stream",
  fast: "a crash of a machine may lose the last seconds, unless NATS syncs every write",
  safe: "it survives the loss of a machine",
};

const STREAMS = [
  { title: "Stream", cell: (row) => html`<span class="mono">${row.name}</span>` },
  {
    title: "Full",
    right: true,
    cell: (row) =>
      row.percentFull === null
        ? html`<span class="dim">no limit</span>`
        : html`<span class="progress"><progress max="100" .value=${row.percentFull} class=${row.percentFull >= 80 ? "high" : ""}></progress>${rate(row.percentFull)} %</span>`,
  },
  { title: "Messages", right: true, cell: (row) => count(row.messages) },
  { title: "Size", right: true, level: 2, cell: (row) => bytes(row.bytes) },
  {
    title: "Durability",
    level: 2,
    cell: (row) => html`<span title=${DURABILITY[row.durability]}>${row.durability === "fast" ? "at least fast" : row.durability}</span>`,
  },
  {
    title: "Copies",
    level: 2,
    cell: (row) => html`${row.copies} on ${row.storage === "memory" ? "memory" : "disk"}${row.copiesBehind ? html` ${badge("behind", `${row.copiesBehind} behind`)}` : null}`,
  },
];

function losses(data) {
  const all = [...new Set(data.servers.flatMap((server) => server.losses))];
  return all.map((loss) => notice("bad", "alert", "Data was lost", loss, "alert"));
}

// What is told of an installation without a change set.
const start = () => html`There is no change set yet. ${
  "playground" in document.documentElement.dataset
    ? html`Begin in the <a href="/playground">playground</a>, or with a command: `
    : "Create one: "
}<span class="mono">${command("enqueue", ["WS", "main"], ["--set", "price=9.5"])}</span>`;

export const page = {
  title: () => "Overview",
  sources: (at) => ({ overview: { path: address("/overview", at.query), live: true } }),
  status: (data) => headline(data)[1],
  view(at, { overview: data }) {
    const [tone, words, more] = headline(data);
    return html`${oldNotice(data.problem, clock(data.at))}${losses(data)}
      <div class="headline ${tone}">
        ${icon(PICTURES[tone])}
        <div><h1 tabindex="-1">${words}</h1><p>${more}</p></div>
        <p class="headline-side">${plural(data.total, "change set")}, ${plural(data.serverCount, "server")}</p>
      </div>
      <div>${tiles(at, data)}</div>
      <section>
        <div class="section-head"><h2>At work</h2>
          ${data.active > data.changeSets.length ? html`<a href="/change-sets?state=working&sort=urgency">all ${count(data.active)}</a>` : null}
          ${data.withErrors ? html`<a href="/change-sets?state=errors&sort=errors">${plural(data.withErrors, "change set")} with errors</a>` : null}
          <a href="/change-sets">all change sets</a></div>
        ${table({ label: "Change sets at work, the most urgent first", columns: WORKING(data), rows: data.changeSets, key: name, empty: data.total ? "No change set has anything to do." : start() })}
      </section>
      <section>
        <h2>Servers</h2>
        ${table({ label: "Servers", columns: SERVERS, rows: data.servers, key: (row) => row.id, empty: "No server answers. Start one: rebaser serve" })}
      </section>
      <section>
        <h2>Streams</h2>
        ${table({ label: "Streams", columns: STREAMS, rows: data.streams, key: (row) => row.name, empty: "There are no streams yet; the first server creates them." })}
      </section>
      <p class="foot">Rebaser ${data.version} · as of ${clock(data.at)} · ${data.actions ? "actions are allowed" : "read-only"}</p>`;
  },
};
