"""The shapes of the API's answers, as they are kept in `api_shapes.txt`: a change of the API is seen in it.

    python -m tests.console.test_goldens

writes the file again. `test_openapi`, and each test that gets an answer, checks that answers have these shapes.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rebaser.console import openapi
from rebaser.console.app import ACTIONS, DOWNLOADS, RESOURCES

GOLDEN = Path(__file__).parent / "api_shapes.txt"


def shape(schema: dict[str, Any]) -> str:
    """Return a type in a few characters, such as `[Row]` for a list of rows."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(map(shape, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(one) for one in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"[{shape(schema['items'])}]"
    if schema.get("type") == "object":
        return f"{{*: {shape(schema['additionalProperties'])}}}"
    return str(schema.get("type", "any"))


def lines() -> Iterator[str]:
    document = json.loads(openapi.document("0", RESOURCES, ACTIONS, DOWNLOADS))
    for path, methods in sorted(document["paths"].items()):
        for method, operation in methods.items():
            asked = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
            [content] = operation["responses"]["200"]["content"].values()
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            given = f" {shape(body)}" if body else ""
            yield f"{method.upper()} {path}{'?' * bool(asked)}{'&'.join(asked)}{given} -> {shape(content['schema'])}"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield ""
        yield name
        for field, of in schema.get("properties", {}).items():
            yield f"  {field}{'' if field in schema.get('required', ()) else '?'}: {shape(of)}"


def test_the_shapes_are_as_they_were() -> None:
    assert GOLDEN.read_text() == "".join(f"{line}\n" for line in lines()), "see what writes it again, above"


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{line}\n" for line in lines()))
