// Why a change set waits: the reasons in order, what happens next, and what to do.

import { html, keyed } from "../html.js";
import { base, changeSetHead, fullName, headSource } from "../change_set.js";
import { address } from "../format.js";
import { icon, withCode } from "../parts.js";

// Where the console shows what a reason is about, by the reason's code.
const PLACES = {
  dead_letters: (at) => [address("/dead-letters", at.path), "Look at them"],
  conflicts: (at) => [base(at, "/conflicts"), "Settle the conflicts"],
  behind: (at) => [base(at, "/changes"), "Look at the changes"],
  // Nothing waits, but values may be in error.
  quiet: (at, one) => (one.advice ? [address(base(at), { state: "error" }), "Look at the values in error"] : []),
  dvu_waiting: (at) => [base(at, "/updates"), "Look at the updates"],
};

function reason(at, one, index) {
  const [place, word] = PLACES[one.code]?.(at, one) ?? [];
  const isWell = one.code === "quiet" && !one.advice;
  return keyed(
    `${index} ${one.code}`,
    html`<li class=${`notice ${one.waits ? "warn" : isWell ? "good" : ""}`}>
      ${icon(one.waits ? "clock" : isWell ? "check" : "ring")}
      <div><strong>${one.text}</strong><p>${withCode(one.advice)}</p>${place ? html`<p><a href=${place}>${word}</a></p>` : null}<p class="dim mono">${one.code}</p></div>
    </li>`,
  );
}

// Seconds after which the reasons are asked for again. They may change without a commit, and take a dozen requests to NATS.
const ASKED_EVERY = 8;

export const page = {
  title: (at) => `Why ${fullName(at)} waits`,
  needs: ["head"],
  sources: (at) => ({ head: headSource(at), explanation: { path: base(at, "/explain") } }),
  outdated: ({ head, explanation }) => (head && explanation && head.at - explanation.at > ASKED_EVERY ? ["explanation"] : []),
  view(at, { head, explanation }, tools) {
    return html`${changeSetHead(at, head, "/explain")}
      ${explanation === null
        ? tools.pending("explanation")
        : html`<section>
            <div class="section-head"><h2>${explanation.waits ? "It waits, most likely for the first of these reasons" : "Nothing keeps it waiting"}</h2>
              <button type="button" class="button" @click=${() => tools.reload("explanation")}>Ask again</button></div>
            <ol class="reasons">${explanation.reasons.map((one, index) => reason(at, one, index))}</ol>
          </section>`}`;
  },
};
