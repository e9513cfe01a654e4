"""The safety rules for every request, before any route sees it.

Invariants: only requests that name an accepted host are answered. Without a login, requests that a proxy forwarded are
refused, unless the user said that this is intended: a proxy on this machine would open the console to everybody who
reaches the proxy. Unless `options.access` accepts the viewer, only the paths that `is_open` accepts are served, and
these reveal nothing about the installation. The API rejects requests from pages of other sites. A request that changes
something is accepted only if the console allows actions and a page of the console sent the request. Every response
carries the headers below, so that a browser runs only the console's own scripts, and other sites can neither embed nor
read a response.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import quote

from starlette.responses import JSONResponse, RedirectResponse

from rebaser.console.access.hiding import show_values
from rebaser.console.access.options import ConsoleOptions
from rebaser.console.access.rules import Refused, Viewer

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 1 << 20  # bytes
MAX_LOGIN = 8192  # bytes of a body that anybody may send; a token fits, however it is escaped
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
# Headers that proxies add. A proxy that adds none of them often uses HTTP/1.0, which no browser does.
FORWARDED = ("forwarded", "via", "x-real-ip", "x-forwarded-", "x-auth-request-")  # with all names that begin so
ACTION_HEADER = "x-rebaser-action"
OTHER_SITES = ("cross-site", "same-site")  # a page there cannot read an answer, but it could make the console work
PROBES = ("/livez", "/readyz")
LOGIN_PAGE, LOGIN, LOGOUT = "/login", "/api/v1/login", "/api/v1/logout"
MAX_NEXT = 2000  # maximum characters of the path to which a browser is redirected after the login
VIEWER = "rebaser.viewer"  # where the scope of a request has its `Viewer`


class Guard:
    """ASGI middleware that applies the rules of this module to `app`."""

    def __init__(self, app: App, options: ConsoleOptions) -> None:
        self._app = app
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _with_headers(message.get("headers", ()), scope["path"])
            await send(message)

        try:
            headers = _texts(scope["headers"])
            check(scope["method"], scope["path"], headers, self._options)
            if self._options.is_local and scope["path"] not in PROBES:
                check_direct(headers, scope.get("http_version", ""), dev=self._options.playground is not None)
            scope[VIEWER] = self._viewer(scope)
        except Refused as refused:
            await _refusal(scope, refused)(scope, receive, send_guarded)
            return
        show_values(not self._options.hide_values)
        await self._app(scope, _bounded(receive, _most(scope["path"])), send_guarded)

    def _viewer(self, scope: Scope) -> Viewer:
        if is_open(scope["path"]):
            return Viewer()
        return self._options.access.viewer(scope["headers"], peer_of(scope))


def peer_of(scope: Scope) -> str:
    """Return the address from which a request came."""
    return scope["client"][0] if scope.get("client") else ""


def is_open(path: str) -> bool:
    """Return whether everybody may ask for `path`: probes, the page for the login and what it loads."""
    return path in (*PROBES, LOGIN_PAGE, LOGIN) or path.startswith("/static/")


def _refusal(scope: Scope, refused: Refused) -> Any:
    """Return the answer to a refused request. For a page, the lack of a login leads to the page for it."""
    if refused.status == 401 and scope["method"] in ("GET", "HEAD") and not scope["path"].startswith("/api/"):
        query = scope.get("query_string", b"").decode("latin-1")
        wanted = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"{LOGIN_PAGE}?next={quote(wanted[:MAX_NEXT], safe='/')}", 303)
    return JSONResponse({"error": {"code": refused.code, "message": refused.message}}, refused.status)


def check(method: str, path: str, headers: dict[str, str], options: ConsoleOptions) -> None:
    """Raise `Refused` if the request breaks a rule."""
    host = headers.get("host", "").lower()
    # A prober knows the console only by its address. The answer to a probe reveals nothing about the installation.
    if host not in options.hosts and path not in PROBES:
        raise Refused(421, "unknown_host", f"this console is not {host[:200]!r}; start it with --allow-host NAME")
    if method in ("GET", "HEAD"):
        if path.startswith("/api/") and headers.get("sec-fetch-site") in OTHER_SITES:
            raise Refused(403, "not_from_console", "pages from other sites may not send requests to this console")
        return
    if method != "POST":
        raise Refused(405, "method", "use GET, or POST for actions")
    if not options.actions and path not in (LOGIN, LOGOUT):
        raise Refused(403, "read_only", "this console only reads; start it with --actions to allow changes")
    if headers.get(ACTION_HEADER) != "1" or headers.get("sec-fetch-site", "same-origin") != "same-origin":
        raise Refused(403, "not_from_console", "an action has to come from a page of this console")
    origin = headers.get("origin", "")
    if origin and origin.partition("://")[2].lower() != host:
        raise Refused(
            403,
            "not_from_console",
            f"an action has to come from a page of this console: it came from a page of {origin[:200]!r}, and was sent"
            f" to the host {host[:200]!r}; a proxy in front of the console has to keep the header Host",
        )
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "not_json", "the body has to be application/json")
    length = headers.get("content-length", "")
    most = _most(path)
    if not length.isdecimal() or int(length[:12]) > most:
        raise Refused(413, "too_large", f"the body has to have a length of at most {most:,} bytes")


def check_direct(headers: dict[str, str], version: str, *, dev: bool) -> None:
    """Raise `Refused` if a proxy forwarded the request. `version` is that of HTTP. `dev` is true for the console of
    `rebaser dev`, which has no options for this."""
    if any(name.startswith(FORWARDED) for name in headers):
        what, probes = "a proxy forwarded this request", ""
    elif version == "1.0":
        what = "a proxy probably forwarded this request, or it uses HTTP/1.0"
        probes = "; for health checks, use /livez"
    else:
        return
    start = "run `rebaser console` beside `rebaser dev`," if dev else "start the console"
    raise Refused(
        403,
        "forwarded",
        f"{what}, and this console has no login, so everybody who reaches the proxy could use it: {start} with --auth"
        f" proxy or --auth token, or with --insecure to allow this{probes}",
    )


def _most(path: str) -> int:
    return MAX_LOGIN if path == LOGIN else MAX_BODY


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def _with_headers(given: Iterable[tuple[bytes, bytes]], path: str) -> list[tuple[bytes, bytes]]:
    # A page, too, is not stored: after a logout, Back would show it with all that it showed.
    added = HEADERS | ({} if path.startswith("/static/") else {"cache-control": "no-store"})
    names = {name.encode() for name in added}
    kept = [(name, value) for name, value in given if name.lower() not in names]
    return kept + [(name.encode(), value.encode()) for name, value in added.items()]


def _bounded(receive: Receive, most: int) -> Receive:
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            return {"type": "http.disconnect"}
        return message

    return receive_bounded
