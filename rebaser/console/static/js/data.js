// Talks to the API: one GET, a live stream, an action.

const API = "/api/v1";

export class Trouble extends Error {
  constructor(code, message, status = 0, { details = [], position = 0 } = {}) {
    super(message);
    this.details = details;
    this.code = code;
    this.status = status;
    // Where in the log there was no such thing.
    this.position = position;
  }
}

// Where a browser downloads a file; an address of the API is none of a page.
export const file = (path) => API + path;

export async function get(path, signal) {
  return answerOf(await send(path, { signal }));
}

export async function act(path, body) {
  return answerOf(
    await send(path, {
      method: "POST",
      headers: { "content-type": "application/json", "x-rebaser-action": "1" },
      body: JSON.stringify(body),
    }),
  );
}

async function send(path, options) {
  try {
    return await fetch(API + path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw away();
  }
}

const away = () => new Trouble("console_away", "The console does not answer. Does its process run?");

async function answerOf(response) {
  let body;
  try {
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    // Only what has arrived as a whole is no JSON; of the rest, another try may bring the end.
    if (!(error instanceof SyntaxError)) throw away();
    throw new Trouble("no_json", `The console answered with status ${response.status}.`, response.status);
  }
  if (body.error?.code === "login_needed") toLogin();
  if (!response.ok) throw new Trouble(body.error?.code ?? "failed", body.error?.message ?? "It failed.", response.status, body.error);
  return body;
}

// The session is over. What was shown is removed at once.
function toLogin() {
  const { pathname, search } = window.location;
  window.location.replace(`/login?next=${encodeURIComponent(pathname + search)}`);
}

// A page without a live stream does not notice that its session ended, and the browser may bring back one that was left.
// Milliseconds between two checks of the session.
const SESSION_EVERY = 60000;
// What fails otherwise is told elsewhere.
const checkSession = () => document.hidden || get("/session").catch(() => {});

if (globalThis.document?.documentElement.dataset.auth === "token") {
  document.addEventListener("visibilitychange", checkSession);
  window.addEventListener("pageshow", (event) => event.persisted && checkSession());
  setInterval(checkSession, SESSION_EVERY);
}

export async function logout() {
  await act("/logout", {});
  window.location.replace("/login");
}

// Milliseconds.
const AGAIN = 3000;

// Read the resource `path`, unless the returned function is called before. Tried again if NATS or the console is away.
export function read(path, { state, trouble }) {
  const aborter = new AbortController();
  let timer = 0;
  const ask = () =>
    get(path, aborter.signal).then(state, (error) => {
      if (error.name === "AbortError") return;
      trouble(error);
      if (error.status === 0 || error.status > 500) again();
    });
  const again = () => (timer = setTimeout(() => (document.hidden ? again() : ask()), AGAIN));
  ask();
  return () => {
    clearTimeout(timer);
    aborter.abort();
  };
}

// Throw the reason why a stream was refused, which an EventSource does not tell.
async function checkStream(path) {
  const response = await send(path, {});
  if (response.headers.get("content-type")?.startsWith("text/event-stream")) await response.body.cancel();
  else await answerOf(response);
}

// Follow the resource `path` until the returned function is called. A page that is hidden follows nothing.
export function follow(path, { state, trouble, link }) {
  const stream = `/live?of=${encodeURIComponent(path)}`;
  let source = null;
  let timer = 0;
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const open = () => {
    close();
    source = new EventSource(API + stream);
    source.addEventListener("state", (event) => {
      link("live");
      state(JSON.parse(event.data));
    });
    source.addEventListener("trouble", (event) => {
      link("live");
      const { error } = JSON.parse(event.data);
      trouble(new Trouble(error.code, error.message));
    });
    source.addEventListener("error", () => {
      link("away");
      if (source?.readyState !== EventSource.CLOSED) return;
      timer = setTimeout(open, AGAIN);
      checkStream(stream).catch((error) => error.status && trouble(error));
    });
  };
  const shown = () => {
    if (document.hidden) {
      close();
      link("paused");
    } else if (source === null) {
      open();
    }
  };
  document.addEventListener("visibilitychange", shown);
  shown();
  return () => {
    document.removeEventListener("visibilitychange", shown);
    close();
  };
}
