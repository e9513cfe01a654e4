"""Command lines of `rebaser` that messages suggest, so that they can be copied to a shell as they are."""

import shlex
from collections.abc import Sequence


def command(verb: str, *arguments: str, options: Sequence[str] = ()) -> str:
    """Return the command line of `rebaser` with this verb, as in `command("get", "shop", "draft")`.

    Names may begin with a dash, and would then be taken for options. So if one does, the options come first, and `--`
    ends them.
    """
    words, last = [*arguments], [*options]
    if any(argument.startswith("-") for argument in arguments):
        words, last = [*last, "--", *words], []
    return " ".join(["rebaser", verb, *map(shlex.quote, [*words, *last])])
