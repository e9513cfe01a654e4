// Why a change set waits: the reasons in order, what happens next, and what to do.

import { html, keyed } from "../html.js";
import { base, changeSetHead, fullName, headSource } from "../change_set.js";
import { icon } from "../parts.js";

function reason(one, index) {
  return keyed(
    `${index} ${one.code}`,
    html`<li class=${`notice ${one.waits ? "warn" : one.code === "quiet" ? "good" : ""}`}>
      ${icon(one.waits ? "clock" : one.code === "quiet" ? "check" : "ring")}
      <div><strong>${one.text}</strong><p>${one.advice}</p><p class="dim mono">${one.code}</p></div>
    </li>`,
  );
}

export const page = {
  title: (at) => `Why ${fullName(at)} waits`,
  needs: ["head"],
  sources: (at) => ({ head: headSource(at), explanation: { path: base(at, "/explain") } }),
  view(at, { head, explanation }, tools) {
    return html`${changeSetHead(at, head, "/explain")}
      ${explanation === null
        ? tools.pending("explanation")
        : html`<section>
            <div class="section-head"><h2>${explanation.waits ? "It waits, most likely for the first of these reasons" : "Nothing keeps it waiting"}</h2>
              <button type="button" class="button" @click=${() => tools.reload("explanation")}>Ask again</button></div>
            <ol class="reasons">${explanation.reasons.map(reason)}</ol>
          </section>`}`;
  },
};
