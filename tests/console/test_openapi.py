"""The document of the API fits its routes, and its answers fit the document, whatever is asked. Other tests of the
console check each answer that they get against it, too."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st

from rebaser.cli.commands.observing.playground import make_playground
from rebaser.console import openapi
from rebaser.console.app import ACTIONS, DOWNLOADS, RESOURCES
from rebaser.console.resources import Resource
from rebaser.testing import LocalRebaser
from rebaser_client import RebaserClient
from tests.console.screenshots import fill
from tests.support.web_console import ACTING, WebConsole, web_console

schemathesis: Any = pytest.importorskip("schemathesis", reason="no schemathesis: uv pip install schemathesis")
checks: Any = pytest.importorskip("schemathesis.checks")
conformance: Any = pytest.importorskip("schemathesis.specs.openapi.checks")

ROUTES = [("GET", one.path) for one in RESOURCES] + [("GET", one.path) for one in DOWNLOADS]
ROUTES += [("POST", one.path) for one in ACTIONS]
IDS = ["invoice/total", "cart/total", "cart/1/price", "vat", "cart/", "*", "no such value"]
PLACES = [{"workspace": "shop", "changeSet": name} for name in ("main", "dearer", "ready", "no-such")]


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(openapi.document("0", RESOURCES, ACTIONS, DOWNLOADS))
    return found


@pytest.fixture(scope="module")
def filled(installation: LocalRebaser) -> Iterator[WebConsole]:
    """A console in a thread, as the client of schemathesis blocks its own."""
    playing = web_console(installation.url, actions=True, playground=make_playground())
    with start_blocking_portal() as portal:

        async def fill_it() -> None:
            async with RebaserClient.connect(installation.url) as client:
                await fill(client, troubles=())

        portal.call(fill_it)
        with portal.wrap_async_context_manager(playing) as console:
            yield console


@pytest.fixture(scope="module")
def described(filled: WebConsole) -> Any:
    return schemathesis.openapi.from_dict(document())


def test_each_route_is_in_the_document() -> None:
    found = document()["paths"]
    assert {(method.upper(), path) for path, methods in found.items() for method in methods} == {
        *ROUTES,
        ("GET", "/live"),
    }
    names = [one["operationId"] for methods in found.values() for one in methods.values()]
    assert len(names) == len(set(names))


def test_a_route_that_is_not_described_is_noticed() -> None:
    async def read(*_: Any) -> Any: ...

    with pytest.raises(KeyError, match="/new"):
        openapi.document("0", [*RESOURCES, Resource("/new", read)], ACTIONS, DOWNLOADS)
    with pytest.raises(KeyError, match="/dvu"):
        openapi.document("0", [one for one in RESOURCES if one.path != "/dvu"], ACTIONS, DOWNLOADS)


@pytest.mark.anyio
async def test_it_is_served(anyio_backend: str, console: WebConsole) -> None:
    reply = await console.ask("/api/v1/openapi.json")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert reply.json()["info"]["version"] == "0.0-test"
    assert reply.json()["paths"] == document()["paths"]


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=[f"{method} {path}" for method, path in ROUTES])
def test_whatever_is_asked_the_answer_fits_the_document(
    filled: WebConsole, described: Any, method: str, path: str
) -> None:
    """The path and the ids are often those of something that is there. Otherwise, hardly anything would be found."""

    @given(case=described[path][method].as_strategy(), data=st.data())
    @settings(max_examples=max(settings.default.max_examples // 4, 6))  # type: ignore[union-attr]
    def ask(case: Any, data: st.DataObject) -> None:
        if case.path_parameters and data.draw(st.booleans()):
            case.path_parameters.update(data.draw(st.sampled_from(PLACES)))
        for given_by in (case.query, case.body):
            if isinstance(given_by, dict) and "id" in given_by and data.draw(st.booleans()):
                given_by["id"] = data.draw(st.sampled_from(IDS))
        base = f"{filled.url}/api/v1"
        response = case.call(base_url=base, headers=ACTING if method == "POST" else None, timeout=60)
        case.validate_response(
            response,
            checks=[
                checks.not_a_server_error,
                conformance.status_code_conformance,
                conformance.content_type_conformance,
                conformance.response_schema_conformance,
            ],
        )

    ask()
