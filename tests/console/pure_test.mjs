// The parts of the console's scripts that need no browser. Run: node --test tests/console/pure_test.mjs
import assert from "node:assert/strict";
import test from "node:test";

const scripts = new URL("../../rebaser/console/static/js/", import.meta.url);
const { markup, safeAddress } = await import(new URL("html.js", scripts));
const { address, age, ago, bytes, command, count, plural, rate, withTyped } = await import(new URL("format.js", scripts));
const { curve, fit, layout } = await import(new URL("graph.js", scripts));
const { run } = await import(new URL("actions.js", scripts));
const { failedBox } = await import(new URL("parts.js", scripts));
const { points } = await import(new URL("chart.js", scripts));
const { loading, progressOf, watchLoading } = await import(new URL("loading.js", scripts));
const { sized } = await import(new URL("parts.js", scripts));
const { follow, get } = await import(new URL("data.js", scripts));

const { headline } = await import(new URL("pages/overview.js", scripts));

const parts = (strings, ..._values) => strings;

test("a hole in text is a comment, one in an attribute is quoted", () => {
  assert.equal(markup(parts`<b>${1}</b>`), "<b><!--\uE0000\uE001--></b>");
  assert.equal(markup(parts`<a href=${1}>${2}</a>`), '<a href="\uE0000\uE001"><!--\uE0001\uE001--></a>');
  assert.equal(markup(parts`<a class="x ${1} y" title='>${2}'>`), `<a class="x \uE0000\uE001 y" title='>\uE0001\uE001'>`);
  assert.equal(markup(parts`1 < 2 ${3}`), "1 < 2 <!--\uE0000\uE001-->");
});

test("an address leads to this console or to the web, or nowhere", () => {
  for (const good of ["/", "/change-sets?q=a", "?a=b", "#main", "https://example.com/x", "HTTP://x"]) {
    assert.equal(safeAddress(good), good);
  }
  for (const bad of ["javascript:alert(1)", " javascript:alert(1)", "//evil.example", "/\\evil.example", "data:text/html,x", "vbscript:x", "", "java\nscript:x", "/\t/evil.example", "/\n/evil.example"]) {
    assert.equal(safeAddress(bad), "#");
  }
});

test("a command line is what a shell takes it for", () => {
  assert.equal(command("rebase", ["shop", "draft"]), "rebaser rebase shop draft");
  assert.equal(command("resolve", ["shop", "draft", "it's $(x)"], ["--take", "main"]), `rebaser resolve shop draft 'it'"'"'s $(x)' --take main`);
  assert.equal(command("resolve", ["shop", "-draft", "price"], ["--take", "-main"]), "rebaser resolve --take -main -- shop -draft price");
});

test("numbers and times", () => {
  assert.deepEqual([0.04, 41.4, 119.9, 120, 7199, 7200, 172799, 172800].map(age), ["0.0 s", "41 s", "120 s", "2 min", "120 min", "2 h", "48 h", "2 d"]);
  assert.deepEqual([0, 0.25, 9.96, 10, 1234.5].map(rate), ["0", "0.3", "10", "10", "1,235"]);
  assert.deepEqual([0, 1023, 1536, 5 * 2 ** 20, 300 * 2 ** 30].map(bytes), ["0 B", "1,023 B", "1.5 KiB", "5.0 MiB", "300 GiB"]);
  assert.equal(count(1234567), "1,234,567");
  assert.deepEqual([plural(1, "server"), plural(2, "branch", "branches")], ["1 server", "2 branches"]);
  assert.equal(ago("1970-01-01T00:16:40.000Z", 1041), "41 s ago");
  assert.equal(ago("1970-01-01T00:16:41.000Z", 1000), "0.0 s ago", "clocks differ");
  assert.equal(ago(null, 1), "");
});

test("an address has the parameters that are not empty", () => {
  assert.equal(address("/x", { q: "a b", state: "" }, { offset: 0, sort: "name" }), "/x?q=a+b&sort=name");
  assert.equal(address("/x", { q: "a" }, { q: "" }), "/x");
  assert.equal(address("/x", {}, { id: "a/b?c#d&e" }), "/x?id=a%2Fb%3Fc%23d%26e");
});

test("a neighbourhood stands in columns without two nodes in one place", () => {
  const nodes = ["a", "b", "c", "d", "e"].map((id, index) => ({ id, level: [0, -1, -1, 1, 1][index] }));
  const edges = [["b", "a"], ["c", "a"], ["a", "d"], ["a", "e"], ["c", "e"]].map(([from, to]) => ({ from, to }));
  const { places, width, height } = layout(nodes, edges);
  assert.ok(places.get("b").x < places.get("a").x && places.get("a").x < places.get("d").x);
  assert.equal(new Set([...places.values()].map(({ x, y }) => `${x} ${y}`)).size, 5);
  for (const { x, y } of places.values()) assert.ok(x >= 0 && y >= 0 && x < width && y < height);
  assert.equal(layout([{ id: "a", level: 0 }], []).places.get("a").y, 0);
  assert.match(curve({ x: 0, y: 0 }, { x: 400, y: 50 }), /^M230 23C/);
  assert.deepEqual([fit("short", 10), fit("a/long/identifier", 8)], ["short", "…ntifier"]);
});

test("a sparkline is drawn from zero, with the newest on the right, and ends at a gap", () => {
  assert.deepEqual(points([0, 5, 10], { at: [0, 5, 10], span: 10, step: 5 }, 100, 33), [[[0, 32], [50, 17], [100, 2]]]);
  assert.deepEqual(points([0, 0], { at: [15, 20], span: 10, step: 5 }, 100, 33), [[[50, 32], [100, 32]]]);
  assert.deepEqual(points([0, 0, 0], { at: [0, 84, 100], span: 100, step: 5 }, 100, 33), [[[0, 32]], [[84, 32]], [[100, 32]]]);
});

// Tools of a page whose action is answered by `answer`. `leave` goes to another page.
function toolsOf(answer) {
  let state = {};
  return { act: () => answer, get state() { return state; }, set: (changes) => Object.assign(state, changes), leave: () => (state = {}) };
}

test("what became of an action is told only on the page that asked for it", async () => {
  let answer;
  const tools = toolsOf(new Promise((resolve, reject) => (answer = { resolve, reject })));
  const stays = run(tools, "apply", "/x", {}, () => "done");
  assert.equal(tools.state.busy, "apply");
  answer.resolve({});
  await stays;
  assert.deepEqual(tools.state, { busy: null, failed: null, done: { name: "apply", told: "done" } });
  for (const end of ["resolve", "reject"]) {
    const left = toolsOf(new Promise((resolve, reject) => (answer = { resolve, reject })));
    const goes = run(left, "apply", "/x", {}, () => assert.fail("it would act on another page"));
    left.leave();
    answer[end](new Error("late"));
    await goes;
    assert.deepEqual(left.state, {});
  }
});

test("only a refusal tells for certain that nothing was done", () => {
  const title = (status) => failedBox({ status, message: "why" }).values.find((value) => typeof value === "string");
  for (const status of [400, 403, 404, 409]) assert.equal(title(status), "Nothing was done");
  for (const status of [0, 500, 503]) assert.equal(title(status), "It is not certain whether this was done");
});

// An EventSource that is refused at once.
class Refused extends EventTarget {
  static CLOSED = 2;
  readyState = 2;
  constructor() {
    super();
    queueMicrotask(() => this.dispatchEvent(new Event("error")));
  }
  close() {}
}

// Follow a resource whose stream is refused, until `done`; return what was asked for, and what was told.
async function refusedWith(answer, done) {
  const [asked, told] = [[], []];
  globalThis.document = { hidden: false, addEventListener() {}, removeEventListener() {} };
  globalThis.EventSource = Refused;
  globalThis.fetch = async (address) => (asked.push(address), answer);
  const stop = follow("/overview?span=30", { state: assert.fail, link() {}, trouble: (error) => told.push(error.message) });
  for (let turn = 0; turn < 1000 && !done(told); turn += 1) await new Promise(setImmediate);
  stop();
  return { asked, told };
}

test("a page says why its live stream is refused, and keeps no second one", async () => {
  const message = "you have 50 live pages open";
  const refusal = Response.json({ error: { code: "too_many", message } }, { status: 503 });
  const asked = ["/api/v1/live?of=%2Foverview%3Fspan%3D30"];
  assert.deepEqual(await refusedWith(refusal, (told) => told.length), { asked, told: [message] });
  let ended = false;
  const body = new ReadableStream({ cancel: () => (ended = true) });
  const open = new Response(body, { headers: { "content-type": "text/event-stream; charset=utf-8" } });
  assert.deepEqual(await refusedWith(open, () => ended), { asked, told: [] });
  assert.ok(ended);
});

test("a loading is told in words, and as a share if that is known", () => {
  assert.deepEqual(progressOf({ stage: "checkpoint", done: 2 ** 20, total: 2 ** 22, bytes: 2 ** 20, seconds: 2 }), { words: "reading values, 1.0 MiB of 4.0 MiB, 2 s", share: 0.25 });
  assert.deepEqual(progressOf({ stage: "commits", done: 30, total: 10, bytes: 2048, seconds: 0.5 }), { words: "reading newer commits, 2.0 KiB so far, 0.5 s", share: 1 });
  assert.deepEqual(progressOf({ stage: "sort", done: 0, total: 0, bytes: 0, seconds: 3 }), { words: "sorting ids, 3 s", share: null });
  for (const nothing of [null, { stage: null }, { stage: "begin", seconds: 1 }]) assert.equal(progressOf(nothing), null);
});

test("how far a loading is, is told only where somebody waits for it", async () => {
  const told = () => loading().values.some((value) => value !== null);
  const answer = () => Response.json({ stage: "sort", done: 0, total: 0, bytes: 0, seconds: 1 });
  globalThis.fetch = async () => answer();
  await new Promise((resolve) => watchLoading("/one", () => true, resolve, 0));
  assert.ok(told());
  let [at, arrive] = ["one"];
  const asked = new Promise((resolve) => (globalThis.fetch = () => (resolve(), new Promise((later) => (arrive = later)))));
  watchLoading("/one", () => at === "one", () => assert.fail("the viewer has left"), 0);
  await asked;
  at = "two";
  watchLoading(null, () => true, assert.fail);
  arrive(answer());
  for (let turn = 0; turn < 100; turn += 1) await new Promise(setImmediate);
  assert.ok(!told());
});

test("an answer that is cut off is one that did not come", async () => {
  const cut = new ReadableStream({ pull: (body) => body.error(new TypeError("network error")) });
  globalThis.fetch = async () => new Response(cut);
  await assert.rejects(get("/x"), { code: "console_away", status: 0 });
  globalThis.fetch = async () => new Response("<html>");
  await assert.rejects(get("/x"), { code: "no_json", status: 200 });
});

test("the rows of a page are those of the address, or those that were chosen last", () => {
  const kept = new Map();
  globalThis.localStorage = { getItem: (name) => kept.get(name) ?? null };
  assert.deepEqual(sized({ q: "a" }), { q: "a", limit: "" });
  kept.set("rebaser-rows", "500");
  assert.deepEqual([sized({}).limit, sized({}, 200).limit, sized({ limit: "25" }).limit], [500, 200, 25]);
  kept.set("rebaser-rows", "nonsense");
  assert.equal(sized({}).limit, "");
});

test("a link that is followed while somebody types takes the search along", () => {
  const here = "http://localhost/change-sets?q=old&offset=100";
  const led = (href, typed = "/change-sets?q=new") => withTyped(href, here, typed).search;
  assert.equal(led("/change-sets?q=old&state=error"), "?q=new&state=error");
  assert.equal(led("/change-sets?q=old&offset=200"), "?q=new", "what was searched before has other pages");
  assert.equal(led("/branches?q=old"), "?q=old");
  assert.equal(led("/change-sets?q=old&state=error", "/change-sets"), "?state=error");
  assert.equal(led("/change-sets?q=old&state=error", ""), "?q=old&state=error");
});

test("not all is well while values are in error", () => {
  const activities = { waiting: 0, unreadable: 0, owned: 1 };
  const data = { activities, serverCount: 1, servers: [{ ready: true, trouble: "" }], deadLetters: 0, active: 1, withErrors: 0 };
  assert.deepEqual(headline(data).slice(0, 2), ["good", "All quiet"]);
  assert.deepEqual(headline({ ...data, active: 3 }).slice(0, 2), ["good", "All well"]);
  assert.deepEqual(headline({ ...data, withErrors: 1 }).slice(0, 2), ["warn", "1 change set has values in error"]);
  assert.deepEqual(headline({ ...data, active: 3, withErrors: 2 }).slice(0, 2), ["warn", "2 change sets have values in error"]);
  assert.deepEqual(headline({ ...data, deadLetters: 1, withErrors: 2 })[1], "1 request could not be processed");
});
