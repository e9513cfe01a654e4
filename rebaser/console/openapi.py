"""The document of the JSON API (OpenAPI 3.1), made from the table of routes and the models of answers.

Invariant: each route is in the document. `document` raises `KeyError` for a route that `READS`, `ACTS` and `FILES` do
not describe, and for a description without a route.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from rebaser.console import answers as a
from rebaser.console import answers_history as h
from rebaser.console import answers_values as v
from rebaser.console.api import branches, change_sets, compare, graph, playground, queue, values
from rebaser.console.live.samples import SPANS
from rebaser.console.resources import MOST, Action, Download, Resource
from rebaser_core.encoding.envelope import JSON, dumps

Json = dict[str, Any]
Model = type[a.AnswerJson]
BASE = values.base_path()
TOKEN = "^[A-Za-z0-9_-]{1,64}$"  # noqa: S105 - of a name
REF = "#/components/schemas/{model}"
REFUSED = {  # what a request may get instead of its answer
    "400": "a parameter or a body is wrong",
    "403": "the console, or its account of NATS, may not do this",
    "404": "there is no such thing",
    "409": "it is refused, because of what the change set is now",
    "503": "NATS cannot be reached, or too much is asked at once",
}


def text(name: str, most: int = 200, *, needed: bool = False) -> Json:
    return _parameter(name, {"type": "string", "maxLength": most}, needed=needed)


def number(name: str, least: int = 0, most: int = 10**15) -> Json:
    return _parameter(name, {"type": "integer", "minimum": least, "maximum": most})


def choice(name: str, choices: Iterable[str]) -> Json:
    return _parameter(name, {"type": "string", "enum": list(choices)})


def _parameter(name: str, schema: Json, *, where: str = "query", needed: bool = False) -> Json:
    return {"name": name, "in": where, "required": needed, "schema": schema}


ID, PREFIX, AFTER = (text(name, values.MAX_ID) for name in ("id", "prefix", "after"))
SEARCH, LONG_SEARCH = text("q"), text("q", values.MAX_ID)
FUNCTION = text("function", values.MAX_ID)
GROUP = [LONG_SEARCH, choice("state", values.STATES), choice("kind", values.KINDS), FUNCTION]
PAGE = [number("offset", most=10**9), number("limit", 1, MOST)]
LISTED = [SEARCH, choice("state", change_sets.FILTERS), choice("sort", change_sets.SORTS)]
BRANCHES = [SEARCH, choice("state", branches.FILTERS), choice("sort", branches.SORTS)]
PLACE = [text(name, needed=True) for name in ("workspace", "changeSet")]
KIND = choice("kind", compare.FILTERS)
BEFORE, AT = number("before"), number("at")

READS: dict[str, tuple[Model, list[Json]]] = {
    "/overview": (a.OverviewJson, [choice("span", SPANS)]),
    "/change-sets": (a.ChangeSetsJson, LISTED + PAGE),
    BASE: (a.ChangeSetNowJson, []),
    f"{BASE}/explain": (h.ExplainedJson, []),
    f"{BASE}/history-size": (h.HistorySizeJson, []),
    f"{BASE}/values": (
        v.ValuesJson,
        [*GROUP, PREFIX, AFTER, number("limit", 1, MOST)],
    ),
    f"{BASE}/value": (v.ValueJson, [ID]),
    f"{BASE}/blame": (h.BlamedJson, [ID]),
    f"{BASE}/graph": (v.GraphJson, [ID, number("depth", 1, graph.MAX_DEPTH), text("expand", graph.MAX_EXPAND)]),
    f"{BASE}/neighbours": (v.NeighboursJson, [ID, choice("side", ("inputs", "dependents")), LONG_SEARCH, *PAGE]),
    f"{BASE}/elsewhere": (v.ElsewherePageJson, [ID, number("offset", most=10**9)]),
    f"{BASE}/loading": (v.LoadingJson, []),
    f"{BASE}/queue": (h.QueueJson, [number("after"), number("limit", 1, queue.MOST)]),
    f"{BASE}/queued": (h.QueuedJson, [number("sequence", 1)]),
    f"{BASE}/commits": (h.CommitsJson, [BEFORE, number("limit", 1, 200)]),
    f"{BASE}/commit": (h.CommitJson, [AT]),
    f"{BASE}/history": (h.HistoryJson, [ID, BEFORE]),
    f"{BASE}/updates": (h.PastUpdatesJson, []),
    f"{BASE}/changes": (
        v.BranchChangesJson,
        [choice("derived", ("no", "yes")), number("derivedOffset", most=10**9), *PAGE],
    ),
    f"{BASE}/conflicts": (v.ConflictsJson, [AFTER, number("limit", 1, 200)]),
    "/dvu": (h.UpdatesJson, [SEARCH, choice("state", ("all", "running", "due")), *PAGE]),
    "/dvu/reasons": (h.DueReasonsJson, [SEARCH, choice("state", ("all", "running", "due")), *PAGE]),
    "/branches": (a.BranchesJson, BRANCHES + PAGE),
    "/compare": (
        v.ComparedJson,
        [*(text(one, needed=True) for one in ("workspace", "a", "b")), LONG_SEARCH, KIND, *PAGE],
    ),
    "/dead-letters": (
        h.DeadLettersJson,
        [*(text(name, 64) for name in ("workspace", "changeSet", "code")), number("after"), number("limit", 1, 200)],
    ),
    "/dead-letters/codes": (h.CodesJson, [text(name, 64) for name in ("workspace", "changeSet")]),
    "/dead-letter": (h.DeadLetterJson, [number("sequence")]),
    "/playground/check": (h.CheckedJson, [*PLACE, ID, text("formula", playground.MAX_FORMULA)]),
    "/playground/covered": (h.CoveredJson, [*PLACE, number("commit")]),
}
ACTS: dict[str, tuple[Model, Model]] = {
    f"{BASE}/edit": (h.EditBodyJson, h.DoneJson),
    f"{BASE}/branch": (h.BranchBodyJson, h.CreatedJson),
    f"{BASE}/rebase": (h.RebaseBodyJson, h.RebasedJson),
    f"{BASE}/resolve": (h.ResolveBodyJson, h.DoneJson),
    f"{BASE}/apply": (h.ApplyBodyJson, h.DoneJson),
    f"{BASE}/revert": (h.RevertBodyJson, h.DoneJson),
    f"{BASE}/recompute": (h.RecomputeBodyJson, h.DoneJson),
    f"{BASE}/close": (h.BodyJson, h.DoneJson),
    f"{BASE}/reopen": (h.BodyJson, h.DoneJson),
    "/dead-letters/redrive": (h.LettersBodyJson, h.LettersDoneJson),
    "/dead-letters/drop": (h.LettersBodyJson, h.LettersDoneJson),
    "/playground/send": (h.SendBodyJson, h.SentJson),
    "/playground/demo": (h.NothingJson, h.SentJson),
}
FILES: dict[str, tuple[str, list[Json]]] = {
    "/change-sets.csv": ("text/csv", LISTED),
    f"{BASE}/values.jsonl": ("application/jsonl", [*GROUP, PREFIX]),
}


def document(
    version: str, resources: Sequence[Resource], actions: Sequence[Action], downloads: Sequence[Download]
) -> bytes:
    """Return the JSON of the document."""
    described = READS.keys() | ACTS.keys() | FILES.keys()
    routes = [one.path for one in resources] + [one.path for one in actions] + [one.path for one in downloads]
    if unknown := described.difference(routes):
        raise KeyError(f"these are no routes: {', '.join(sorted(unknown))}")
    models: list[Model] = [
        a.ErrorJson,
        *(model for model, _ in READS.values()),
        *(model for pair in ACTS.values() for model in pair),
    ]
    _, defined = models_json_schema([(model, "validation") for model in dict.fromkeys(models)], ref_template=REF)
    paths: dict[str, Json] = {"/live": {"get": _live([one.path for one in resources if one.live])}}
    for resource in resources:
        model, parameters = READS[resource.path]
        paths[resource.path] = {"get": _operation(resource.path, resource.read, parameters, _json(model))}
    for download in downloads:
        media, parameters = FILES[download.path]
        content = {media: {"schema": {"type": "string"}}}
        paths[download.path] = {"get": _operation(download.path, download.read, parameters, content)}
    for action in actions:
        body, model = ACTS[action.path]
        marked = _parameter("x-rebaser-action", {"const": "1"}, where="header", needed=True)
        operation = _operation(action.path, action.act, [marked], _json(model))
        paths[action.path] = {"post": operation | {"requestBody": {"required": True, "content": _json(body)}}}
    return dumps(
        JSON,
        {
            "openapi": "3.1.0",
            "info": {
                "title": "The console of Rebaser",
                "version": version,
                "description": "It may change with each release. Programs use the client.",
            },
            "servers": [{"url": "/api/v1"}],
            "paths": paths,
            "components": {
                "schemas": defined["$defs"],
                "responses": {
                    status: {"description": words, "content": _json(a.ErrorJson)} for status, words in REFUSED.items()
                },
            },
        },
    )


def _operation(path: str, handler: Any, parameters: Sequence[Json], content: Json) -> Json:
    told = re.sub(r"\s+", " ", (handler.__doc__ or "").replace("`", "")).strip()
    places = [
        _parameter(name, {"type": "string", "pattern": TOKEN}, where="path", needed=True)
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    return {
        "operationId": re.sub(r"\W+", "_", path.replace("{workspace}/{changeSet}", "one")).strip("_"),
        "description": told,
        "parameters": [*places, *parameters],
        "responses": {"200": {"description": "the answer", "content": content}, **_refused(*REFUSED)},
    }


def _refused(*statuses: str) -> Json:
    return {status: {"$ref": f"#/components/responses/{status}"} for status in statuses}


def _json(model: Model) -> Json:
    return {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}


def _live(paths: Sequence[str]) -> Json:
    told = (
        "Events named `state`, each with the JSON that a GET of the path `of` would answer, at once and whenever it"
        f" changes; or `trouble` with an error. The path may be one of {', '.join(paths)}."
    )
    schema = {"type": "string", "maxLength": 4096}
    return {
        "operationId": "live",
        "description": told,
        "parameters": [_parameter("of", schema, needed=True)],
        "responses": {
            "200": {"description": "the events", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
            **_refused("400", "404", "503"),
        },
    }
