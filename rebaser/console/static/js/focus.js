// Keeps the focus in sight of those who use the keyboard.

// What has the focus on the page, and what may have it instead when that is gone. A pointer may take the focus away.
let held = null;
function hold({ target }) {
  const near = (selector) => target.closest(selector);
  held = near("main") && {
    target,
    instead: [
      target.name && `main [name="${target.name}"]`,
      near("form, button") && "[data-outcome]",
      near("details") && "main details[open] summary",
      near(".graph") && ".node.here",
      near(".pager") && ".pager a",
      near("[data-rows]") && "[data-rows] a",
      "h1",
    ],
  };
}

// Give the focus back if drawing removed what had it, or if that is no longer disabled.
export function keepFocus() {
  if (held === null) return;
  const { target, instead } = held;
  const isLost = () => [document.body, target].includes(document.activeElement);
  if (!isLost()) return;
  if (target.isConnected) return target.disabled || target.focus();
  if (document.querySelector("main .loading")) return;
  for (const one of instead) if (one && isLost()) document.querySelector(one)?.focus();
}

// Move from row to row of a table, in the same column. Returns false, so that the page scrolls, if no row has the focus.
export function step(to) {
  const cell = document.activeElement.closest("[data-rows] td");
  if (cell === null) return false;
  for (let row = cell.parentElement[to]; row; row = row[to]) {
    const next = row.cells[cell.cellIndex].querySelector("a, input");
    if (next) return next.focus();
  }
}

// Give the focus to the first row that a search found, if there is one.
export function intoRows() {
  const first = document.querySelector("[data-rows] a");
  first?.focus();
  return first !== null;
}

document.addEventListener("focusin", hold);
document.addEventListener("pointerdown", () => (held = null), true);
