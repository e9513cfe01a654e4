// Updates of derived values: which run, which are due and why these wait.

import { html } from "../html.js";
import { address, ago, age, clock, count, plural } from "../format.js";
import { badge, chips, name, notice, oldNotice, pager, search, sized, table } from "../parts.js";
import { updateText } from "./overview.js";

const FILTERS = [["all", "All"], ["running", "Running"], ["due", "Due"]];

const STAGES = { plan: "planning", spark: "computing on Spark", absorb: "reading results", commit: "storing results" };

// The stage of an update that runs, its plan: the whole graph at once, or packets in waves; and its Spark job.
export function stageText({ stage, plan, wave, sparkTag }) {
  // A server of an older release.
  if (!STAGES[stage]) return "";
  const how = plan === "packets" ? `wave ${count(wave)} of packets` : plan;
  return [STAGES[stage], how, sparkTag && `job ${sparkTag}`].filter(Boolean).join(", ");
}

// What is known of an update that waits.
export function waitsText(found) {
  if (!found) return "";
  const tries = found.failures ? `${plural(found.failures, "try", "tries")} failed` : found.deaths ? `${plural(found.deaths, "server")} died or hung` : "";
  const next = found.retryIn ? `next try in ${age(found.retryIn)}` : "";
  return [tries, next].filter(Boolean).join(", ");
}

const COLUMNS = (data, reasons) => {
  const why = (row) => (row.update ? undefined : reasons?.reasons[name(row)]);
  return [
    { title: "Change set", cell: (row) => html`<a class="row-link" href=${`/change-sets/${name(row)}/updates`}><span class="dim">${row.workspaceId}/</span>${row.changeSetId}</a>` },
    { title: "State", cell: (row) => badge(row.update ? "updating" : (why(row)?.state ?? "due")) },
    { title: "Progress", cell: (row) => (row.update ? updateText(row) : waitsText(why(row))) },
    { title: "Stage", level: 2, cell: (row) => (row.update ? html`<span class="dim">${stageText(row.update)}</span>` : "") },
    { title: "Server", level: 2, cell: (row) => html`<span class="mono dim">${row.server || why(row)?.server || (row.hasTask ? row.owner : "")}</span>` },
    { title: "Why it waits", level: 2, kind: "grow", cell: (row) => row.problem || why(row)?.error || why(row)?.text },
    { title: "Last commit", right: true, level: 3, cell: (row) => ago(row.lastCommitTime, data.at) },
  ];
};

const engines = (data) => {
  const down = data.engines.filter((one) => one.dvu !== "ready");
  return down.length
    ? notice("warn", "alert", `${plural(down.length, "server")} of ${count(data.engines.length)} cannot run updates on Spark now`, `${down[0].server}: ${down[0].dvu}`)
    : null;
};

export const page = {
  title: () => "Updates",
  needs: ["list"],
  sources: (at) => ({ list: { path: address("/dvu", sized(at.query)), live: true }, reasons: { path: address("/dvu/reasons", sized(at.query)) } }),
  // What is due changes all the time; its reasons are looked up again after a while.
  outdated: ({ list, reasons }) => (list && reasons && list.counts.due && list.at - reasons.at > 8 ? ["reasons"] : []),
  status: (data) => `${plural(data.counts.running, "update")} running, ${count(data.counts.due)} due`,
  view: (at, { list: data, reasons }, tools) => html`${oldNotice(data.problem, clock(data.at))}
    <div class="page-head"><h1 tabindex="-1">Updates</h1><span class="dim">of derived values, that run or are due</span>
      ${data.sparkUi ? html`<a class="side" href=${data.sparkUi}>Spark UI</a>` : null}</div>
    ${engines(data)}
    <div class="filters">
      ${search(at, tools, { label: "Search change sets" })}
      ${chips(at, "state", FILTERS, "Filter", data.counts)}
    </div>
    ${table({ label: "Updates", columns: COLUMNS(data, reasons), rows: data.rows, key: name, empty: "No update runs, and none is due. Short ones end before they are seen here." })}
    ${pager(at, data, tools)}`,
};
