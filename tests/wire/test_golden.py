"""Every golden file can still be read, and the current versions are written byte for byte as before."""

import json

import pytest

from rebaser_core.messages import REGISTRY
from tests.support.example_states import FOLDER
from tests.support.examples import Example, examples, write_missing

EXAMPLES = list(examples())


def load(example: Example) -> tuple[dict[str, str], bytes]:
    headers = json.loads(example.headers_path.read_text()) if example.headers_path.exists() else {}
    return headers, example.path.read_bytes()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_golden_file_decodes_to_its_message(example: Example) -> None:
    decoded = example.read(*load(example))
    assert decoded == example.message
    assert repr(decoded) == repr(example.message)  # 1, 1.0 and true are equal, but not identical


@pytest.mark.parametrize("example", [one for one in EXAMPLES if one.current], ids=lambda example: example.name)
def test_a_message_is_written_as_its_golden_file_in_the_lowest_version_that_can_say_it(example: Example) -> None:
    headers, payload = example.write(example.message)
    assert (headers or {}, payload) == load(example)


def test_every_golden_file_has_an_example() -> None:
    """A file that no test reads would be useless."""
    claimed = {example.name for example in EXAMPLES}
    assert {path.name.removesuffix(".headers.json") for path in FOLDER.iterdir()} == claimed


def test_every_version_and_content_type_has_golden_files() -> None:
    names = [example.name for example in EXAMPLES]
    for kind in REGISTRY.types.values():
        for version in range(1, kind.current + 1):
            for extension in ("cbor", "json"):
                assert any(name.startswith(f"{kind.name}.v{version}.") and name.endswith(extension) for name in names)


def test_no_golden_file_is_ever_rewritten() -> None:
    assert write_missing() == []
