"""The routes of the login with a token: its page, beginning and ending a session, and who is logged in."""

from typing import Any

import structlog
from anyio import fail_after
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from rebaser.console.access.guard import LOGIN, LOGIN_PAGE, LOGOUT, VIEWER, peer_of
from rebaser.console.access.rules import MAX_TOKEN, Refused, TokenAccess
from rebaser.console.files import StaticFile
from rebaser.console.live.hub import Hub

log = structlog.get_logger(__name__)

BODY = 20.0  # seconds within which the token must arrive
SESSION = "/api/v1/session"


def login_routes(access: object, hub: Hub, page: StaticFile) -> list[Route]:
    """Return the routes. Without a login, its page leads to the overview."""
    if not isinstance(access, TokenAccess):
        return [Route(LOGIN_PAGE, _to_overview, methods=["GET"])]
    return [
        Route(LOGIN_PAGE, _page(page), methods=["GET"]),
        Route(LOGIN, _login(access), methods=["POST"]),
        Route(LOGOUT, _logout(access, hub), methods=["POST"]),
        Route(SESSION, _session, methods=["GET"]),
    ]


def _login(access: TokenAccess) -> Any:
    async def answer(request: Any) -> Any:
        peer = peer_of(request.scope)
        try:
            access.check_tries(peer)
            with fail_after(BODY):
                body = await request.json()
            token = body.get("token") if isinstance(body, dict) else None
        except (ValueError, ClientDisconnect, RecursionError, TimeoutError):
            token = None
        except Refused as refused:
            return _error(refused)
        if not isinstance(token, str) or len(token) > MAX_TOKEN:
            return _error(Refused(400, "not_json", f"the body has to name a token of up to {MAX_TOKEN} characters"))
        try:
            viewer, cookie = access.login(token, request.scope["headers"], peer)
        except Refused as refused:
            if refused.code == "wrong_token":  # there are few of these: the others are not looked at
                log.warning("console_login_failed", address=peer)
            return _error(refused)
        log.info("console_login", address=peer, **viewer.logged)
        return JSONResponse({}, headers={"set-cookie": cookie})

    return answer


def _logout(access: TokenAccess, hub: Hub) -> Any:
    async def answer(request: Any) -> Any:
        log.info("console_logout", **request.scope[VIEWER].logged)
        cookie = access.logout(request.scope["headers"])
        hub.tell()  # the live streams of the session end
        return JSONResponse({}, headers={"set-cookie": cookie})

    return answer


async def _session(request: Any) -> Any:
    return JSONResponse({"user": request.scope[VIEWER].user})


async def _to_overview(_: Any) -> Any:
    return RedirectResponse("/", 303)


def _page(page: StaticFile) -> Any:
    async def answer(_: Any) -> Any:
        return Response(page.content, media_type=page.media_type)

    return answer


def _error(refused: Refused) -> Any:
    return JSONResponse({"error": {"code": refused.code, "message": refused.message}}, refused.status)
