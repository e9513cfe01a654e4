// The page for the login: sends the token, and goes on to the page that somebody wanted to see.

const form = globalThis.document?.querySelector("form");
const told = globalThis.document?.getElementById("told");

// The wanted page, if it is one of this console. The whole address is used: the path of another one may begin with //.
export function goal(search, here) {
  try {
    const wanted = new URL(new URLSearchParams(search).get("next") ?? "/", here);
    if (wanted.origin === new URL(here).origin && wanted.pathname !== "/login") return wanted.href;
  } catch {
    // it is no address
  }
  return new URL("/", here).href;
}

const proceed = () => window.location.replace(goal(window.location.search, window.location.href));

async function send(token) {
  const headers = { "content-type": "application/json", "x-rebaser-action": "1" };
  const response = await fetch("/api/v1/login", { method: "POST", headers, body: JSON.stringify({ token }) });
  if (!response.ok) return ((await response.json().catch(() => null))?.error?.message ?? "it failed");
  if ((await fetch("/api/v1/session")).ok) return "";
  return "this browser did not keep the session: use https, or Chrome at localhost";
}

async function onSubmit(event) {
  event.preventDefault();
  const button = form.querySelector("button");
  const field = form.querySelector("input");
  button.disabled = true;
  const problem = await send(field.value.trim()).catch(() => "the console does not answer; does its process run?");
  button.disabled = false;
  if (!problem) return proceed();
  told.textContent = `Not logged in: ${problem}.`;
  field.setAttribute("aria-invalid", "true");
  field.select();
  field.focus();
}

if (form) {
  form.addEventListener("submit", onSubmit);
  // A link on another site leads here although there is a session: browsers do not send its cookie then.
  fetch("/api/v1/session").then((response) => response.ok && proceed(), () => {});
}
