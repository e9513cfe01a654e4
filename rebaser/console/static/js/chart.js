// A sparkline: the last minutes of one number, drawn to scale from zero.

import { svg, html } from "./html.js";

const WIDTH = 240;
const HEIGHT = 36;

// The points of `values` in a box whose width is `span` seconds, by their times in `at`, the newest on the right. There is
// one list of points for each time without a gap, which is more than three times `step`.
export function points(values, { at, span, step }, width = WIDTH, height = HEIGHT) {
  const top = Math.max(...values, 1);
  const lines = [];
  values.forEach((value, index) => {
    if (!index || at[index] - at[index - 1] > 3 * step) lines.push([]);
    lines.at(-1).push([round(width - ((at.at(-1) - at[index]) / span) * width), round(height - 1 - (value / top) * (height - 3))]);
  });
  return lines;
}

const round = (number) => Math.round(number * 10) / 10;

// `series` has the times of the values: `at`, `span` and `step`, in seconds.
export function sparkline(values, label, series) {
  if (values.length < 2) return html`<svg class="spark" viewBox="0 0 ${WIDTH} ${HEIGHT}" aria-hidden="true"></svg>`;
  const paths = points(values, series).map((line) => [line.map(([x, y]) => `${x} ${y}`).join("L"), line[0][0], line.at(-1)[0]]);
  const area = paths.map(([path, start, end]) => `M${start} ${HEIGHT}L${path}L${end} ${HEIGHT}Z`).join("");
  return html`<svg class="spark" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${svg`<path class="spark-area" d=${area}></path>`}${svg`<path class="spark-line" d=${`M${paths.map(([path]) => path).join("M")}`}></path>`}
  </svg>`;
}
