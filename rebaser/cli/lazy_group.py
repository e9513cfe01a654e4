"""A group of commands whose modules are imported when a command is chosen, or when all are listed with their help."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, ClassVar, TypeAlias

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

Function: TypeAlias = Callable[..., int]  # a command as typer takes it: its parameters are the options
Command: TypeAlias = Any  # typer does not export the class


class LazyCommands(MutableMapping[str, Command]):
    """Commands by name. A value is a command, or a function that makes it, which is called when the value is read."""

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
    """The commands that `command` and `group` registered, and after them those of the application itself."""

    makers: ClassVar[dict[str, Callable[[], Command]]] = {}

    def __init__(self, *, commands: dict[str, Command], **attributes: Any) -> None:
        lazy = LazyCommands(self.makers)
        lazy.update(commands)
        super().__init__(commands=lazy, **attributes)  # type: ignore[arg-type] # it takes any mapping

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override] # noqa: ARG002
        return list(self.commands)

    @classmethod
    def command(cls, name: str, epilog: str) -> Callable[[Callable[[], Function]], None]:
        """Register the command whose function the decorated function imports and returns."""

        def register(load: Callable[[], Function]) -> None:
            def make() -> Command:
                single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
                single.command(name, epilog=epilog)(load())
                return get_command(single)

            cls.makers[name] = make

        return register

    @classmethod
    def group(cls, name: str) -> Callable[[Callable[[], typer.Typer]], None]:
        """Register the group that the decorated function imports and returns."""

        def register(load: Callable[[], typer.Typer]) -> None:
            cls.makers[name] = lambda: get_group(load())

        return register
