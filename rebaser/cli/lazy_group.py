"""A group of commands whose modules are imported when a command is chosen, not when the commands are listed."""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, ClassVar, TypeAlias

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

# A function that typer turns into a command; its parameters define the options.
Function: TypeAlias = Callable[..., int]
Command: TypeAlias = Any  # typer does not export the class


class LazyCommands(MutableMapping[str, Command]):
    """A mapping from names to commands. A command is created when it is first accessed."""

    def __init__(self, makers: dict[str, Callable[[], Command]]) -> None:
        self._makers = dict(makers)
        self._made: dict[str, Command] = {}

    def __getitem__(self, name: str) -> Command:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __setitem__(self, name: str, command: Command) -> None:
        self._makers[name] = lambda: command
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._makers[name]
        self._made.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


class LazyGroup(TyperGroup):
    """A group that consists of the commands registered by `command` and `group`, followed by the application's own
    commands.

    `summary` is the first sentence of a command's help, which the list of commands and shell completion show.
    """

    makers: ClassVar[dict[str, Callable[[], Command]]] = {}
    summaries: ClassVar[dict[str, str]] = {}

    def __init__(self, *, commands: dict[str, Command], **attributes: Any) -> None:
        lazy = LazyCommands(self.makers)
        lazy.update(commands)
        super().__init__(commands=lazy, **attributes)  # type: ignore[arg-type] # the base class accepts any mapping
        listed: dict[str, Command] = {
            name: TyperCommand(name, short_help=text) for name, text in self.summaries.items()
        }
        self._listed = listed | commands

    @contextmanager
    def _listing(self) -> Iterator[None]:
        """Enter a context in which commands have only names and summaries, so that listing them imports no command
        modules."""
        commands, self.commands = self.commands, self._listed
        try:
            yield
        finally:
            self.commands = commands

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with self._listing():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @classmethod
    def command(cls, name: str, summary: str, epilog: str) -> Callable[[Callable[[], Function]], None]:
        """Register a command. The decorated function imports and returns the function of the command."""

        def register(load: Callable[[], Function]) -> None:
            def make() -> Command:
                single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
                single.command(name, epilog=epilog)(load())
                return get_command(single)

            cls.makers[name] = make
            cls.summaries[name] = summary

        return register

    @classmethod
    def group(cls, name: str, summary: str) -> Callable[[Callable[[], typer.Typer]], None]:
        """Register the group that the decorated function imports and returns."""

        def register(load: Callable[[], typer.Typer]) -> None:
            cls.makers[name] = lambda: get_group(load())
            cls.summaries[name] = summary

        return register
