// The shell: which page is shown, what it is fed with, and the keys.

import { follow, read, act, logout } from "./data.js";
import { intoRows, keepFocus, step } from "./focus.js";
import { withTyped } from "./format.js";
import { html, keyed, render } from "./html.js";
import { remember } from "./kept.js";
import { loading, missing, unloaded, watchLoading } from "./loading.js";
import { icon, troubleBox } from "./parts.js";

const ROUTES = [
  ["/", "overview"],
  ["/change-sets", "change_sets"],
  ["/change-sets/:workspace/:changeSet", "values"],
  ["/change-sets/:workspace/:changeSet/value", "value"],
  ["/change-sets/:workspace/:changeSet/neighbours", "neighbours"],
  ["/change-sets/:workspace/:changeSet/graph", "graph"],
  ["/change-sets/:workspace/:changeSet/commits", "commits"],
  ["/change-sets/:workspace/:changeSet/commit", "commit"],
  ["/change-sets/:workspace/:changeSet/queue", "queue"],
  ["/change-sets/:workspace/:changeSet/explain", "explain"],
  ["/change-sets/:workspace/:changeSet/changes", "changes"],
  ["/change-sets/:workspace/:changeSet/conflicts", "conflicts"],
  ["/change-sets/:workspace/:changeSet/updates", "updates"],
  ["/branches", "branches"],
  ["/compare", "compare"],
  ["/dvu", "dvu"],
  ["/dead-letters", "dead_letters"],
  ["/dead-letters/letter", "dead_letter"],
  ["/playground", "playground"],
];
const NAV = [
  ["/", "Overview", "o"],
  ["/change-sets", "Change sets", "c"],
  ["/branches", "Branches", "b"],
  ["/dvu", "Updates", "u"],
  ["/dead-letters", "Dead letters", "d"],
  ...("playground" in document.documentElement.dataset ? [["/playground", "Playground", "p"]] : []),
];
const KEYS = [
  ["/", "search"],
  ["g, a letter", `go to: ${NAV.map(([, word, key]) => `${key} ${word.toLowerCase()}`).join(", ")}`],
  ["[ and ]", "previous and next page of a list"],
  ["↑ and ↓", "move in a table, from link to link; ↓ also from a search into what it found"],
  ["Enter, c, o", "in a graph: expand a value, move it to the middle, open its page"],
  ["t", "switch between light and dark"],
  ["?", "these keys"],
];
// Milliseconds without a key until a search begins.
const TYPING = 200;
// Milliseconds between two reads of the same.
const RENEWED_EVERY = 4000;
// Milliseconds between two things that a screen reader is told.
const TOLD_EVERY = 5000;

const app = { at: null, page: null, feeds: new Map(), local: {}, link: "connecting", keysOpen: false, focusHeading: false, told: "", toldAt: 0 };
const root = document.getElementById("app");

// -- routes -----------------------------------------------------------------------------------------------------------

function matchRoute(pathname) {
  const parts = pathname.split("/");
  for (const [template, name] of ROUTES) {
    const wanted = template.split("/");
    const path = {};
    const fits = wanted.length === parts.length && wanted.every((part, index) => {
      if (!part.startsWith(":")) return part === parts[index];
      path[part.slice(1)] = parts[index];
      return parts[index] !== "";
    });
    if (fits) return { name, path };
  }
  return null;
}

async function show(moved) {
  const { pathname, search } = window.location;
  const found = matchRoute(pathname.length > 1 ? pathname.replace(/\/$/, "") : pathname);
  clearTimeout(typing.timer);
  typing = { timer: 0, href: "" };
  // No name has characters that cannot be seen, so those of an address would only mislead. Line breaks separate ids.
  const query = Object.fromEntries([...new URLSearchParams(search)].map(([name, text]) => [name, text.replace(/(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, "")]));
  const at = { pathname, query, path: found?.path ?? {} };
  const page = found === null ? missing : await load(found.name);
  // Somebody went on meanwhile.
  if (window.location.pathname !== pathname || window.location.search !== search) return;
  const isNew = app.page !== page || JSON.stringify(app.at?.path) !== JSON.stringify(at.path);
  const isOther = isNew || page.object?.(at) !== page.object?.(app.at);
  app.at = at;
  if (isNew) {
    for (const feed of app.feeds.values()) feed.stop();
    app.feeds.clear();
  }
  if (isOther) app.local = {};
  app.page = page;
  feed(page.sources(at), !isOther);
  const { workspace, changeSet } = at.path;
  const waits = () => app.at === at && [...app.feeds.values()].some((one) => one.loading && one.data === null);
  watchLoading(changeSet ? `/change-sets/${workspace}/${changeSet}` : null, waits, draw);
  document.title = `${page.title(at)} · Rebaser`;
  if (moved && isNew) {
    window.scrollTo(0, 0);
    app.focusHeading = true;
  }
  draw();
}

const load = (name) => import(`./pages/${name}.js`).then((module) => module.page, () => unloaded(() => app.feeds.get("overview").failed));

function go(href, { replace = false } = {}) {
  const target = withTyped(href, window.location.href, typing.href);
  if (target.href === window.location.href) return;
  window.history[replace ? "replaceState" : "pushState"](null, "", target.pathname + target.search);
  show(!replace);
}

// -- what a page is fed with ------------------------------------------------------------------------------------------

// With `keep`, what was fed from the address before is shown until there is an answer.
function feed(sources, keep) {
  for (const [name, one] of app.feeds) {
    if (sources[name]?.path !== one.path) one.stop();
  }
  for (const [name, source] of Object.entries(sources)) {
    const before = app.feeds.get(name);
    if (before?.path === source.path) continue;
    app.feeds.set(name, begin(source, keep ? (before?.data ?? null) : null));
  }
  for (const name of [...app.feeds.keys()]) if (!(name in sources)) app.feeds.delete(name);
}

// Begin to feed from `source`; `data` is shown until its first answer.
function begin(source, data) {
  const one = { path: source.path, data, trouble: null, failed: false, loading: true, begun: Date.now(), stop: () => {} };
  const state = (found) => {
    Object.assign(one, { data: found, trouble: null, loading: false });
    draw();
    if (source.live) renew();
  };
  const trouble = (found) => Object.assign(one, { trouble: found, loading: false, failed: true }) && draw();
  if (source.live) {
    one.stop = follow(source.path, {
      state,
      trouble,
      link: (now) => {
        if (app.link !== now) {
          app.link = now;
          draw();
        }
      },
    });
  } else {
    one.stop = read(source.path, { state, trouble });
  }
  return one;
}

function reload(name) {
  const before = app.feeds.get(name);
  if (before === undefined) return;
  before.stop();
  const again = begin(app.page.sources(app.at)[name], before.data);
  // Until there is an answer.
  again.trouble = before.trouble;
  app.feeds.set(name, again);
}

// Read again what the live part of the page shows to be outdated.
function renew() {
  for (const name of app.page.outdated?.(dataNow(), app.at, tools) ?? []) {
    const one = app.feeds.get(name);
    if (one && !one.loading && Date.now() - one.begun > RENEWED_EVERY) reload(name);
  }
}

const dataNow = () => Object.fromEntries([...app.feeds].map(([name, one]) => [name, one.data]));

// The search that begins once nobody types any more.
let typing = { timer: 0, href: "" };
const tools = {
  go,
  act,
  reload,
  // Go somewhere in place of the present entry of the history, once nobody types any more.
  soon(href) {
    clearTimeout(typing.timer);
    typing = { timer: setTimeout(() => go(href, { replace: true }), TYPING), href };
  },
  // What stands in place of something that is not there yet.
  pending(name, meanwhile = loading()) {
    const { trouble } = app.feeds.get(name);
    return trouble ? troubleBox(trouble) : meanwhile;
  },
  isGone: (name) => isGone(app.feeds.get(name)),
  // The position that a source is of; of something that is gone, the one at which it was not there.
  positionOf(name) {
    const one = app.feeds.get(name);
    return one && isGone(one) ? one.trouble.position : one?.data?.position;
  },
  get state() {
    return app.local;
  },
  set(changes) {
    Object.assign(app.local, changes);
    draw();
  },
};

// -- drawing ----------------------------------------------------------------------------------------------------------

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  queueMicrotask(() => {
    drawing = false;
    if (app.page === null) return;
    render(shell(), root);
    if (app.focusHeading) focusHeading();
    else keepFocus();
    showCentre();
  });
}

// Where the viewer is, is in sight: in the navigation, in the tabs, and in a wide drawing when it is first shown.
let located = "";
let centred = "";
function showCentre() {
  const here = document.querySelectorAll("nav [aria-current=page]");
  const place = `${app.at.pathname} ${here.length}`;
  if (located !== place) here.forEach((one) => one.scrollIntoView({ inline: "nearest", block: "nearest" }));
  located = place;
  const now = window.location.href;
  const centre = document.querySelector("[data-center]");
  // What is shown until there is an answer has another centre.
  if (centre === null || centred === now || [...app.feeds.values()].some((one) => one.loading)) return;
  centred = now;
  const frame = centre.closest(".scroll");
  const [inner, outer] = [centre, frame].map((one) => one.getBoundingClientRect());
  frame.scrollBy(inner.left + inner.width / 2 - outer.left - outer.width / 2, inner.top + inner.height / 2 - outer.top - outer.height / 2);
}

// The heading of a new page gets the focus: that of "Loading…" first, and then that of the page.
function focusHeading() {
  app.focusHeading = document.querySelector(".loading") !== null;
  document.querySelector("h1")?.focus({ preventScroll: true });
}

// The data is outdated, and is kept only to notice when the object comes back.
const isGone = (one) => one.trouble?.code.startsWith("no_such");

function content() {
  const data = dataNow();
  for (const [name, one] of app.feeds) if (isGone(one)) data[name] = null;
  const title = () => html`<h1 tabindex="-1">${app.page.title(app.at)}</h1>`;
  for (const name of app.page.needs ?? Object.keys(data)) {
    if (data[name] !== null) continue;
    const { trouble } = app.feeds.get(name);
    return html`${title()}${trouble ? troubleBox(trouble) : loading()}`;
  }
  const old = [...app.feeds.values()].filter((one) => one.trouble !== null && one.data !== null && !isGone(one));
  return html`${old.map((one) => troubleBox(one.trouble))}${app.page.view(app.at, data, tools)}`;
}

function shell() {
  const here = (href) => (href === "/" ? app.at.pathname === "/" : app.at.pathname.startsWith(href));
  return html`<a class="skip" href="#main" @click=${skip}>Skip to the content</a>
    <header class="bar">
      <a class="brand" href="/"><img src="/static/icon.svg" alt="" width="22" height="22"><span>Rebaser</span></a>
      <nav class="main-nav" aria-label="Pages of the console">
        ${NAV.map(([href, word]) => html`<a href=${href} aria-current=${here(href) ? "page" : null}>${word}</a>`)}
      </nav>
      <span class="tools">
        ${document.documentElement.dataset.values === "hidden" ? html`<span class="tag">values hidden</span>` : null}
        ${linkState()}
        <button type="button" class="quiet-button" @click=${switchTheme} title="Switch between light and dark (t)" aria-label="Switch between light and dark">${icon("half")}</button>
        <button type="button" class="quiet-button" @click=${() => toggleKeys(true)} title="Keys (?)" aria-label="Show the keys">?</button>
        ${document.documentElement.dataset.auth === "token" ? html`<button type="button" class="quiet-button" @click=${logout} title="Log out" aria-label="Log out">${icon("leave")}</button>` : null}
      </span>
    </header>
    <main id="main" tabindex="-1">${keyed(app.at.pathname, html`${content()}`)}</main>
    <p class="hidden" role="status">${announce()}</p>
    ${app.keysOpen ? keysDialog() : null}`;
}

const LINKS = {
  connecting: ["calm", "connecting", "The console has not answered yet."],
  live: ["good", "live", "This page updates itself."],
  paused: ["calm", "paused", "A page that is hidden does not update itself."],
  away: ["bad", "away", "The console does not answer; the page tries again."],
};

function linkState() {
  const hasLive = Object.values(app.page.sources(app.at)).some((source) => source.live);
  if (!hasLive) return null;
  const [tone, word, title] = LINKS[app.link];
  return html`<span class="link-state ${tone}" title=${title}><span class="dot"></span>${word}</span>`;
}

// What a screen reader is told: the page's headline, and not too often.
function announce() {
  const first = app.feeds.values().next().value;
  const now = app.page.status && first?.data ? app.page.status(first.data) : "";
  if (now !== app.told && Date.now() - app.toldAt > TOLD_EVERY) {
    app.told = now;
    app.toldAt = Date.now();
  }
  return app.told;
}

// -- theme, keys ------------------------------------------------------------------------------------------------------

function switchTheme() {
  const { dataset } = document.documentElement;
  const dark = dataset.theme ? dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  dataset.theme = dark ? "light" : "dark";
  remember("theme", dataset.theme);
}

let cameFrom = null;
function toggleKeys(open) {
  if (open && !app.keysOpen) cameFrom = document.activeElement;
  app.keysOpen = open;
  draw();
  queueMicrotask(() => queueMicrotask(() => (open ? document.querySelector(".dialog button") : cameFrom)?.focus()));
}

const keysDialog = () => html`<div class="veil" @click=${(event) => event.target === event.currentTarget && toggleKeys(false)}>
  <div class="dialog" role="dialog" aria-modal="true" aria-labelledby="keys-title">
    <h2 id="keys-title">Keys</h2>
    <dl class="keys">${KEYS.map(([key, meaning]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${meaning}</dd></div>`)}</dl>
    <button type="button" class="button" @click=${() => toggleKeys(false)}>Close</button>
  </div>
</div>`;

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

let awaitsLetter = false;
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && app.keysOpen) return toggleKeys(false);
  if (app.keysOpen) {
    // The dialog has one button.
    if (event.key === "Tab") event.preventDefault();
    return;
  }
  if (event.target.matches("input:not([type=checkbox]), textarea, select")) {
    if (event.key === "Escape") {
      // Otherwise, the browser would empty a search, and the table stay filtered by it.
      event.preventDefault();
      (event.target.closest("details")?.querySelector("summary") ?? document.querySelector("[data-rows] a") ?? document.querySelector("h1")).focus();
    }
    if (event.key === "ArrowDown" && event.target.matches("[data-search]") && intoRows()) event.preventDefault();
    return;
  }
  if (awaitsLetter) {
    awaitsLetter = false;
    const found = NAV.find(([, , key]) => key === event.key);
    if (found) go(found[0]);
    return;
  }
  const acts = {
    "/": () => document.querySelector("[data-search]")?.focus(),
    "?": () => toggleKeys(true),
    g: () => (awaitsLetter = true),
    t: switchTheme,
    "[": () => document.querySelector("a[rel=prev]")?.click(),
    "]": () => document.querySelector("a[rel=next]")?.click(),
    ArrowDown: () => step("nextElementSibling"),
    ArrowUp: () => step("previousElementSibling"),
  };
  if (acts[event.key]?.() !== false && event.key in acts) event.preventDefault();
}

function onClick(event) {
  // Of HTML or of SVG.
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const target = new URL(link.getAttribute("href"), window.location.href);
  if (target.origin !== window.location.origin || target.pathname.startsWith("/api/")) return;
  event.preventDefault();
  go(target.href);
}

// Without a login, the console is meant for this machine. A proxy that leaves no trace in its requests is detected
// here, because the browser used a host name that the console does not accept.
const { hosts } = document.documentElement.dataset;
if (hosts && !hosts.split(" ").includes(window.location.host)) {
  const message = `A proxy forwards ${window.location.host} to this console, which has no login: anyone who reaches the proxy can use it. Start the console with --auth proxy or --auth token, or with --insecure to allow this.`;
  render(html`<main id="main">${troubleBox({ code: "forwarded", message })}</main>`, root);
} else {
  document.addEventListener("keydown", onKey);
  document.addEventListener("click", onClick);
  window.addEventListener("popstate", () => show(true));
  show(false);
}
