// Numbers and times as text. Pure: `node --test` runs these without a browser.

const NUMBER = new Intl.NumberFormat("en-US");
const SMALL = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export const count = (number) => NUMBER.format(number);

export function rate(number) {
  return number >= 10 || number === 0 ? NUMBER.format(Math.round(number)) : SMALL.format(number);
}

export const plural = (number, noun, nouns = `${noun}s`) => `${count(number)} ${number === 1 ? noun : nouns}`;

// An age in at most three digits and a unit: 0.4 s, 41 s, 12 min, 3 h, 8 d.
export function age(seconds) {
  if (seconds < 1) return `${seconds.toFixed(1)} s`;
  for (const [unit, [size, until]] of Object.entries({ s: [1, 120], min: [60, 7200], h: [3600, 172800] })) {
    if (seconds < until) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${NUMBER.format(Math.round(seconds / 86400))} d`;
}

export const duration = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : age(seconds));

export function bytes(number) {
  for (const [unit, size] of Object.entries({ GiB: 2 ** 30, MiB: 2 ** 20, KiB: 2 ** 10 })) {
    if (number >= size) return `${(number / size).toFixed(number / size < 10 ? 1 : 0)} ${unit}`;
  }
  return `${NUMBER.format(number)} B`;
}

// How long before `now` (Unix seconds) an ISO time was.
export function ago(iso, now) {
  return iso === null ? "" : `${age(Math.max(now - Date.parse(iso) / 1000, 0))} ago`;
}

export function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

const quoted = (word) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);

// A command line that can be copied to a shell. A name may begin with a dash: then the options come first, and `--` ends them.
export function command(verb, names, options = []) {
  const dashed = names.some((name) => name.startsWith("-"));
  return ["rebaser", verb, ...(dashed ? [...options, "--", ...names] : [...names, ...options]).map(quoted)].join(" ");
}

// `path` with `changes` to its query; parameters that are empty are left out.
export function address(path, query, changes = {}) {
  const all = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...query, ...changes })) {
    if (value !== "" && value !== null && value !== undefined && value !== 0) all.set(name, String(value));
  }
  const text = all.toString();
  return text ? `${path}?${text}` : path;
}

// Where a link of the page `here` leads while somebody types: what differs from `here` in the address of the search is kept.
export function withTyped(link, here, search) {
  const [target, from, to] = [link, here, search || here].map((href) => new URL(href, here));
  if (target.pathname !== from.pathname) return target;
  const [before, after] = [from.searchParams, to.searchParams];
  for (const name of new Set([...before.keys(), ...after.keys()])) {
    if (after.get(name) === before.get(name)) continue;
    if (after.has(name)) target.searchParams.set(name, after.get(name));
    else target.searchParams.delete(name);
  }
  return target;
}
