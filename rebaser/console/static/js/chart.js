// A sparkline: the last minutes of one number, drawn to scale from zero.

import { svg, html } from "./html.js";

const WIDTH = 240;
const HEIGHT = 36;

// The points of `values` in a box, oldest on the left. `slots` is how many values fill its width.
export function points(values, slots, width = WIDTH, height = HEIGHT) {
  const top = Math.max(...values, 1);
  const step = width / Math.max(slots - 1, 1);
  const first = width - (values.length - 1) * step;
  return values.map((value, index) => [round(first + index * step), round(height - 1 - (value / top) * (height - 3))]);
}

const round = (number) => Math.round(number * 10) / 10;

export function sparkline(values, label, slots = 150) {
  if (values.length < 2) return html`<svg class="spark" viewBox="0 0 ${WIDTH} ${HEIGHT}" aria-hidden="true"></svg>`;
  const line = points(values, slots);
  const path = line.map(([x, y]) => `${x} ${y}`).join("L");
  const area = `M${line[0][0]} ${HEIGHT}L${path}L${WIDTH} ${HEIGHT}Z`;
  return html`<svg class="spark" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${svg`<path class="spark-area" d=${area}></path>`}${svg`<path class="spark-line" d=${`M${path}`}></path>`}
  </svg>`;
}
