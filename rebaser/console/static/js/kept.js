// What this browser remembers between visits; nothing if its storage is off.

export function remembered(name) {
  try {
    return localStorage.getItem(`rebaser-${name}`) ?? "";
  } catch {
    return "";
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`rebaser-${name}`, value);
  } catch {
    // It lasts until the page is left.
  }
}
