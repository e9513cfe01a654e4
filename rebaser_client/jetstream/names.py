"""Names of streams and consumers, where they stand in the subject of a call (ADR-6)."""

import re
from functools import lru_cache

from rebaser_core.errors import ConfigError

_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]+")


@lru_cache(maxsize=4096)
def subject_tokens(*names: str) -> str:
    """`names`, to be put behind a call's subject; raises `ConfigError` for what no server takes as a name.

    A dot in one would make another subject of it, to which nobody answers: not even that the name is wrong.
    """
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ConfigError(f"{name!r} is no name of a stream or consumer: not empty, no space, none of . * > / \\")
    return ".".join(names)
