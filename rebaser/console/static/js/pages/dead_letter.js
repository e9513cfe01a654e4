// One dead letter: why it died, its headers, and its request.

import { outcome } from "../actions.js";
import { address, bytes, plural } from "../format.js";
import { html, keyed } from "../html.js";
import { icon } from "../parts.js";
import { actButtons } from "./dead_letters.js";

export const page = {
  title: (at) => `Dead letter ${at.query.sequence ?? ""}`,
  needs: [],
  object: (at) => at.query.sequence,
  sources: (at) => ({ letter: { path: address("/dead-letter", { sequence: at.query.sequence }) } }),
  view(at, { letter }, tools) {
    return html`<div class="object-head">
        <p class="crumbs"><a href="/dead-letters">Dead letters</a> /</p>
        <h1 tabindex="-1" class="mono">${letter?.requestId ?? `Dead letter ${at.query.sequence}`}</h1>
      </div>
      ${outcome(tools, "letters")}${letter === null || tools.state.gone ? (tools.state.gone ? null : tools.pending("letter")) : body(letter, tools)}`;
  },
};

function body(letter, tools) {
  return html`<div class="notice bad">${icon("cross")}<div><strong>${letter.code}</strong><p>${letter.reason}</p>
      <p class="facts"><span>in <a href=${`/change-sets/${letter.workspaceId}/${letter.changeSetId}`}>${letter.workspaceId}/${letter.changeSetId}</a></span>
        <span>tried ${plural(letter.attempts, "time")} by <span class="mono">${letter.server}</span></span>
        ${letter.redrive ? html`<span>redriven ${plural(letter.redrive, "time")}</span>` : null}<span>${letter.time.replace("T", " ").slice(0, 19)} UTC</span></p></div></div>
    ${letter.actions ? actButtons(tools, [letter.sequence], (answer) => tools.set({ gone: !answer.failed.length && !answer.unsure.length })) : null}
    <section><h2>Request</h2>
      ${letter.problem ? html`<p class="dim">It cannot be read: ${letter.problem}</p>` : null}
      ${letter.payload.text ? html`<pre class="block" tabindex="0">${letter.payload.text}</pre>` : null}<p class="dim">${letter.payload.whole ? null : "The beginning of "}${bytes(letter.payload.length)}</p></section>
    <section><h2>Headers</h2>
      <div class="scroll"><table><tbody>${Object.entries(letter.headers).map(([name, value]) => keyed(name, html`<tr><th scope="row">${name}</th><td class="mono">${value}</td></tr>`))}</tbody></table></div></section>`;
}
