// Runs before the first paint, so that no page flashes in the other theme.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("rebaser-theme");
  } catch {
    // storage is off: the system's theme counts
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
