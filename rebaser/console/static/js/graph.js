// Where the nodes of a neighbourhood stand: columns by distance, and in each column an order with few crossings. Pure.

export const WIDTH = 230;
export const HEIGHT = 46;
export const ACROSS = 90;
export const DOWN = 20;

// Places for `nodes` ({id, level}) and `edges` ({from, to}): {places: Map of id to {x, y}, width, height}.
export function layout(nodes, edges) {
  const columns = new Map();
  for (const node of nodes) {
    if (!columns.has(node.level)) columns.set(node.level, []);
    columns.get(node.level).push(node.id);
  }
  const levels = [...columns.keys()].sort((one, other) => one - other);
  const neighbours = new Map(nodes.map((node) => [node.id, []]));
  for (const { from, to } of edges) {
    neighbours.get(from)?.push(to);
    neighbours.get(to)?.push(from);
  }
  const rank = new Map();
  const number = (ids) => ids.forEach((id, index) => rank.set(id, index - (ids.length - 1) / 2));
  for (const level of levels) number(columns.get(level));
  const outwards = [...levels].sort((one, other) => Math.abs(one) - Math.abs(other));
  for (let sweep = 0; sweep < 4; sweep += 1) {
    for (const level of sweep % 2 ? [...outwards].reverse() : outwards) {
      const ids = columns.get(level);
      const middle = new Map(ids.map((id) => [id, centre(neighbours.get(id).filter((other) => !ids.includes(other)), rank, rank.get(id))]));
      ids.sort((one, other) => middle.get(one) - middle.get(other));
      number(ids);
    }
  }
  const rows = Math.max(...[...columns.values()].map((ids) => ids.length));
  const places = new Map();
  levels.forEach((level, column) => {
    for (const id of columns.get(level)) {
      places.set(id, { x: column * (WIDTH + ACROSS), y: (rank.get(id) + (rows - 1) / 2) * (HEIGHT + DOWN) });
    }
  });
  return { places, width: levels.length * (WIDTH + ACROSS) - ACROSS, height: rows * (HEIGHT + DOWN) - DOWN };
}

function centre(ids, rank, fallback) {
  return ids.length ? ids.reduce((sum, id) => sum + rank.get(id), 0) / ids.length : fallback;
}

// The line of an edge, from the right side of its input to the left side of what uses it.
export function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2];
  const bend = Math.max(Math.abs(x2 - x1) / 2, 40);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}

// A text that fits into `most` characters; the end of an id tells more than its beginning.
export const fit = (text, most) => (text.length <= most ? text : `…${text.slice(1 - most)}`);
