"""The routes of the console: pages, static files, the JSON API and the live stream."""

import json
from collections.abc import Awaitable, Mapping
from functools import cache
from html import escape
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

import anyio
import structlog
from starlette.applications import Starlette
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from rebaser.console.access.guard import VIEWER, Guard
from rebaser.console.access.login import login_routes
from rebaser.console.access.options import ConsoleOptions
from rebaser.console.access.rules import Viewer
from rebaser.console.api import (
    branches,
    change_set,
    change_sets,
    commits,
    compare,
    dead_letters,
    downloads,
    edits,
    elsewhere,
    graph,
    neighbours,
    overview,
    playground,
    queue,
    updates,
    values,
)
from rebaser.console.downloads import Downloads, response
from rebaser.console.files import StaticFile, tag_of
from rebaser.console.openapi import document
from rebaser.console.resources import FAILED, Action, Answer, Console, Download, Given, Resource, error_answer
from rebaser.console.shapes import cut
from rebaser.console.stream import EventResponse, LiveStream
from rebaser_core.encoding.envelope import JSON, dumps
from rebaser_core.errors import RebaserError

log = structlog.get_logger(__name__)

T = TypeVar("T")
API = "/api/v1"
MAX_QUERY = 4096  # characters
MAX_PATH = 400  # characters of a path in a log event
BODY = 20.0  # seconds in which the body of an action has to arrive
PAGES = (
    overview,
    change_sets,
    change_set,
    values,
    neighbours,
    elsewhere,
    graph,
    commits,
    queue,
    updates,
    branches,
    compare,
    edits,
    dead_letters,
    downloads,
    playground,
)
RESOURCES: tuple[Resource, ...] = tuple(one for page in PAGES for one in page.RESOURCES)
ACTIONS: tuple[Action, ...] = tuple(one for page in PAGES for one in getattr(page, "ACTIONS", ()))
DOWNLOADS: tuple[Download, ...] = downloads.DOWNLOADS


def make_app(console: Console, files: Mapping[str, StaticFile]) -> Any:
    """Return the ASGI application."""
    running = Downloads()
    routes = [Route(f"{API}/live", _live(console), methods=["GET"])]
    routes += [Route(API + one.path, _reading(console, one), methods=["GET"]) for one in RESOURCES]
    routes += [Route(API + one.path, _acting(console, one), methods=["POST"]) for one in ACTIONS]
    routes += [Route(API + one.path, _downloading(console, one, running), methods=["GET"]) for one in DOWNLOADS]
    routes += login_routes(console.options.access, console.hub, files["login.html"])
    routes.append(Route(f"{API}/openapi.json", _described(console.version), methods=["GET"]))
    shell = _shell(files["index.html"], console.options)
    routes += [
        Route(API + "/{rest:path}", _unknown),
        Route("/livez", _alive, methods=["GET"]),
        Route("/readyz", _alive, methods=["GET"]),
        Route("/static/{path:path}", _static(files), methods=["GET"]),
        Route("/{path:path}", _static({"": shell}, always=True), methods=["GET"]),
    ]
    app = Starlette(routes=routes, exception_handlers={Exception: _failed})
    return Guard(GZipMiddleware(app, minimum_size=1400), console.options)


def _shell(page: StaticFile, options: ConsoleOptions) -> StaticFile:
    """Return the page of all pages, which tells the scripts what the console was started with."""
    told = f'<html lang="en" data-auth="{options.access.kind}"'
    if options.is_local:
        told += f' data-hosts="{escape(" ".join(sorted(options.hosts)))}"'
    told += ' data-values="hidden"' * options.hide_values
    told += " data-playground" * (options.playground is not None)
    content = page.content.replace(b'<html lang="en"', told.encode(), 1)
    return StaticFile(content, page.media_type, tag_of(content))


def _reading(console: Console, resource: Resource) -> Any:
    async def answer(request: Any) -> Any:
        try:
            body = await _while_wanted(request, resource.body(console, _given(request)))
            return Response(body or b"", media_type="application/json")
        except RebaserError as error:
            return _refusal(error)

    return answer


def _downloading(console: Console, download: Download, running: Downloads) -> Any:
    async def read(request: Any) -> Any:
        try:
            document = await _while_wanted(request, download.read(console, _given(request)))
        except RebaserError as error:
            return _refusal(error)
        return Response(status_code=503) if document is None else response(document)

    async def answer(request: Any) -> Any:
        async def respond(scope: Any, receive: Any, send: Any) -> None:
            if running.is_full:
                too_many = {"error": {"code": "too_many", "message": "too many downloads run; try again"}}
                await JSONResponse(too_many, 503)(scope, receive, send)
                return
            with running.slot():
                found = await read(request)
                await found(scope, receive, send)

        return respond

    return answer


async def _while_wanted(request: Any, reading: Awaitable[T]) -> T | None:
    """Return what `reading` returns. It is cancelled, and the result is None, if the client disconnects: else clients
    that come and go could pile up reads without bound."""

    async def watch(scope: anyio.CancelScope) -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    error: Exception | None = None
    found: T | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(watch, group.cancel_scope)
        try:
            found = await reading
        except Exception as raised:  # noqa: BLE001 - a task group would wrap it
            error = raised
        group.cancel_scope.cancel()
    if error is not None:
        raise error
    return found


def _acting(console: Console, action: Action) -> Any:
    async def answer(request: Any) -> Any:
        try:
            with anyio.fail_after(BODY):
                body = json.loads(await request.body())
            json.dumps(
                body, ensure_ascii=False
            ).encode()  # raises if a text is not valid Unicode, because such a text could not be stored
        except (ValueError, ClientDisconnect, RecursionError, TimeoutError):
            body = None
        if not isinstance(body, dict):
            return JSONResponse({"error": {"code": "not_json", "message": "the body has to be a JSON object"}}, 400)
        given = _given(request)
        path = cut(request.scope["path"], MAX_PATH)
        event = (
            {"path": path}
            | request.scope[VIEWER].logged
            | {name: cut(str(body[name])) for name in action.logged if name in body}
        )
        outcome = "unknown"  # if it is cancelled, or fails in a way that nobody expected, it may have been done
        try:
            done = await action.act(console, given, body)
            outcome = "partly" if done.get("left") or done.get("failed") or done.get("unsure") else "done"
        except RebaserError as error:
            outcome = error.code
            return _refusal(error)
        finally:
            log.info("console_action", outcome=outcome, **event)
        return _json(done)

    return answer


def _live(console: Console) -> Any:
    stream = LiveStream(console)

    async def answer(request: Any) -> Any:
        try:
            of = urlsplit(request.query_params.get("of", "")[:MAX_QUERY])
            query = dict(parse_qsl(of.query, max_num_fields=32))
        except ValueError:
            return JSONResponse({"error": {"code": "invalid_argument", "message": "of has to be a path"}}, 400)
        for resource in RESOURCES:
            path = resource.match(of.path)
            if path is not None and resource.live:
                return _streaming(stream, resource, Given(path, query), request.scope[VIEWER])
        return JSONResponse({"error": {"code": "not_found", "message": "nothing live has this path"}}, 404)

    return answer


def _streaming(stream: LiveStream, resource: Resource, given: Given, viewer: Viewer) -> Any:
    async def respond(scope: Any, receive: Any, send: Any) -> None:
        if refusal := stream.refusal(viewer):
            await JSONResponse({"error": {"code": "too_many", "message": refusal}}, 503)(scope, receive, send)
            return
        with stream.slot(viewer):
            await EventResponse(stream.events(resource, given, viewer))(scope, receive, send)

    return respond


def _static(files: Mapping[str, StaticFile], *, always: bool = False) -> Any:
    async def answer(request: Any) -> Any:
        file = files.get("" if always else request.path_params["path"])
        if file is None:
            return PlainTextResponse("there is no such file\n", 404)
        headers = {"etag": file.tag, "cache-control": "no-cache"}  # a browser asks each time, and gets few bytes
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    return answer


async def _alive(_: Any) -> Any:
    return PlainTextResponse("ok\n")


def _described(version: str) -> Any:
    @cache
    def content() -> bytes:
        return document(version, RESOURCES, ACTIONS, DOWNLOADS)

    async def answer(_: Any) -> Any:
        return Response(content(), media_type="application/json")

    return answer


async def _unknown(_: Any) -> Any:
    return JSONResponse({"error": {"code": "not_found", "message": "the API has no such path"}}, 404)


def _given(request: Any) -> Given:
    return Given(dict(request.path_params), dict(request.query_params))


def _json(answer: Answer) -> Any:
    return Response(dumps(JSON, answer), media_type="application/json")


def _refusal(error: RebaserError) -> Any:
    status, answer = error_answer(error)
    return JSONResponse(answer, status)


def _failed(request: Any, error: Exception) -> Any:
    log.error("http_failed", path=cut(request.scope["path"], MAX_PATH), exc_info=error)
    return JSONResponse(FAILED, 500)
