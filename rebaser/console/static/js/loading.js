// What stands in place of something that is not there yet; of a large change set, how far its loading is.

import { get } from "./data.js";
import { age, bytes } from "./format.js";
import { html } from "./html.js";

// Milliseconds until somebody wants to know, and between two answers.
const AFTER = 700;
const EVERY = 500;

const STAGES = {
  checkpoint: ({ done, total }) => `reading values, ${bytes(done)} of ${bytes(Math.max(done, total))}`,
  values: () => "unpacking values",
  commits: ({ bytes: size }) => `reading newer commits, ${bytes(size)} so far`,
  sort: () => "sorting ids",
};

let timer = 0;
let progress = null;

// How far a loading is, in words, and as a share if that is known. Pure.
export function progressOf(found) {
  const words = found && STAGES[found.stage]?.(found);
  return words ? { words: `${words}, ${age(found.seconds)}`, share: found.total ? Math.min(found.done / found.total, 1) : null } : null;
}

// Ask how far the loading of the change set at `path` is, again and again, as long as `waits()`. Without a path, nothing
// is asked, and what was told of another change set is forgotten.
export function watchLoading(path, waits, draw, after = AFTER) {
  clearTimeout(timer);
  progress = null;
  if (path === null) return;
  const ask = async () => {
    if (!waits()) return;
    const found = progressOf(await get(`${path}/loading`).catch(() => null));
    // Somebody went on meanwhile.
    if (!waits()) return;
    progress = found;
    draw();
    timer = setTimeout(ask, EVERY);
  };
  timer = setTimeout(ask, after);
}

// A screen reader hears only that it loads.
export const loading = () => html`<div class="loading"><p role="status">Loading…</p>
  ${progress ? html`<p aria-hidden="true">${progress.words}</p><progress class="long" max="1" value=${progress.share} aria-label="Loaded"></progress>` : null}</div>`;

export const missing = {
  title: () => "Not found",
  sources: () => ({}),
  view: () => html`<h1 tabindex="-1">Not found</h1><p>The console has no such page. <a href="/">Go to the overview</a>.</p>`,
};

// In place of a page whose code could not be loaded. If the console was away, its next answer loads the document again.
export const unloaded = (wasAway) => ({
  title: () => "This page could not be loaded",
  sources: () => ({ overview: { path: "/overview" } }),
  view() {
    const again = () => window.location.reload();
    if (wasAway()) again();
    return html`<h1 tabindex="-1">This page could not be loaded</h1><p><button type="button" class="button" @click=${again}>Load it again</button></p>`;
  },
});
