"""Converts the names of streams and consumers into tokens of an API subject (ADR-6)."""

import re
from functools import lru_cache

from rebaser_core.errors import ConfigError

_NAME = re.compile(r"[^\s.*>/\\\x00-\x1f\x7f]+")


@lru_cache(maxsize=4096)
def subject_tokens(*names: str) -> str:
    """Join `names` into the end of an API subject. Raise `ConfigError` for a name that no server accepts.

    The check is necessary because a name with a dot would result in a different subject, on which no server answers.
    """
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{name!r} is not a valid name of a stream or consumer: it is empty, or has a space, "
                "a control character, or one of . * > / \\"
            )
    return ".".join(names)
