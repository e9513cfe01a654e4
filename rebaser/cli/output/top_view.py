"""The view of `rebaser top`, and the effect of keys on it. This module neither reads from nor writes to a terminal.

Invariant: a screen of H lines is rendered from at most H change sets, no matter how many change sets there are.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rebaser.cli.output.console import duration_text, safe
from rebaser.cli.output.wording import progress_text
from rebaser_client.admin.fleet import ActiveChangeSet, FleetView
from rebaser_client.admin.servers import ServerInfo
from rebaser_core.ids import ChangeSetKey

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Sort = Literal["urgency", "queue", "rate", "name"]
URGENCY = ("unreadable", "waiting", "updating", "due", "busy", "owned")
SORTS: dict[Sort, Callable[[ActiveChangeSet], Any]] = {
    "urgency": lambda row: (URGENCY.index(row.activity), -row.waiting, -row.pending, row.key),
    "queue": lambda row: (-row.pending, row.key),
    "rate": lambda row: (-row.commits_per_second, row.key),
    "name": lambda row: row.key,
}
WAITS = ("unreadable", "waiting", "updating", "due")
STYLES = {"unreadable": "bold red", "waiting": "bold yellow", "updating": "cyan", "due": "yellow", "owned": "dim"}
TITLES = ("CHANGE SET", "STATE", "QUEUE", "WAITS", "COMMITS/S", "LAST COMMIT", "DVU", "ERRORS", "OWNER")
RIGHT = (2, 3, 4, 5, 7)
FLEXIBLE = {0: 3, 6: 2, 8: 2}  # maps the columns that share the remaining width to their shares
SERVER_TITLES = ("SERVER", "VERSION", "OWNED", "SLOTS", "SPARK", "TROUBLE")
SERVER_RIGHT = (2, 3)
SERVER_FLEXIBLE = {4: 1, 5: 1}
NO_SERVER = "no server answers; requests wait until one runs (`rebaser serve`)"
MAX_SERVERS = 8  # maximum number of servers on a screen; their lines take up at most about a third of the screen
HELP = "q quit   s sort: {sort}   w {waiting}   ↑↓ select   ⏎ explain"


@dataclass(slots=True)
class TopScreen:
    """The choices of the user: the order, whether only waiting change sets are shown, and the selected change set."""

    sort: Sort = "urgency"
    waiting_only: bool = False
    selected: ChangeSetKey | None = None
    _shown: list[ChangeSetKey] = field(default_factory=list)

    def press(self, key: str) -> Literal["quit", "explain", "draw", "nothing"]:
        """Handle a key, and return the action that the caller has to take.

        The keys are `up`, `down`, `pageup`, `pagedown`, `enter`, `escape` and characters.
        """
        if key in ("q", "Q"):
            return "quit"
        if key in ("s", "S"):
            orders = list(SORTS)
            self.sort = orders[(orders.index(self.sort) + 1) % len(orders)]
            self.selected = None
        elif key in ("w", "W"):
            self.waiting_only = not self.waiting_only
            self.selected = None
        elif key == "escape":
            self.selected = None
        elif key in ("up", "down", "pageup", "pagedown"):
            self._move({"up": -1, "down": 1, "pageup": -10, "pagedown": 10}[key])
        elif key == "enter" and self.selected is not None:
            return "explain"
        else:
            return "nothing"
        return "draw"

    def _move(self, steps: int) -> None:
        if not self._shown:
            return
        if self.selected in self._shown:
            place = min(max(self._shown.index(self.selected) + steps, 0), len(self._shown) - 1)
            self.selected = self._shown[place]
        else:
            self.selected = self._shown[0]

    def choose(self, view: FleetView, limit: int) -> list[ActiveChangeSet]:
        """Return the first `limit` change sets in the chosen order. The result includes the selected change set if it
        is active."""
        rows = [row for row in view.change_sets if not self.waiting_only or row.activity in WAITS]
        order = SORTS[self.sort]
        best = heapq.nsmallest(limit, rows, key=order)
        if self.selected is not None and all(row.key != self.selected for row in best):
            best = best[: limit - 1] + [row for row in rows if row.key == self.selected]
        self._shown = [row.key for row in best]
        return best


def headline(view: FleetView) -> list[str]:
    """Return the lines that describe the whole installation."""
    waiting = [row.waiting for row in view.change_sets if row.activity == "waiting"]
    due = sum(1 for row in view.change_sets if row.debt)
    first = [
        f"requests {rate_text(view.requests_per_second)}/s",
        f"commits {rate_text(view.commits_per_second)}/s",
        f"queue {view.requests:,}" + (f", oldest {age_text(view.oldest_request)}" if view.requests else ""),
    ]
    if view.tasks is not None:
        first.append(f"tasks {view.tasks.pending:,} wait, {view.tasks.in_flight:,} in flight")
    if view.dead_letters:
        first.append(f"dead letters {view.dead_letters:,}")
    second = [f"{len(view.change_sets):,} of {view.total:,} change sets at work", f"{len(waiting):,} wait"]
    if waiting and max(waiting) >= 1:
        second[-1] += f", longest {age_text(max(waiting))}"
    second.append(f"{due:,} update{'' if due == 1 else 's'} due")
    return ["   ".join(first), "   ".join(second)]


def change_set_row(row: ActiveChangeSet, now: float) -> tuple[str, ...]:
    """Return the cells of a change set, in the order of `TITLES`."""
    update, due = row.update, "due" if row.debt else ""
    return (
        f"{row.workspace}/{row.change_set}",
        row.activity,
        f"{row.pending:,}" if row.pending else "",
        age_text(row.waiting) if row.activity == "waiting" else "",
        rate_text(row.commits_per_second) if row.commits_per_second else "",
        age_text(max(now - row.committed_at, 0.0)) if row.last_commit else "",
        row.problem or (due if update is None else progress_text(update.done, update.total, update.seconds)),
        f"{row.errors:,}" if row.errors else "",
        row.owner if row.has_task else "",
    )


def server_row(server: ServerInfo) -> tuple[str, ...]:
    """Return the cells of a server, in the order of `SERVER_TITLES`. A star marks the sweeper."""
    return (
        server.id + (" *" if server.sweeper else ""),
        server.version,
        f"{server.owned:,}",
        f"{server.slots:,}",
        server.dvu,
        server.trouble,
    )


def rate_text(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def age_text(seconds: float) -> str:
    """Return an age in at most three digits and a unit: `0.4s`, `41s`, `12m`, `3h`, `8d`."""
    if seconds < 1:
        return f"{seconds:.1f}s"
    for unit, size, until in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < until:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds / 86_400:.0f}d"


def about_line(servers: Sequence[ServerInfo], key: ChangeSetKey) -> str:
    """Return a line that says which server owns the change set `key`, and what the server is doing with it."""
    name = f"{key.workspace}/{key.change_set}"
    for server in servers:
        about = server.about
        if about is None or about.phase is None:
            continue
        words = [f"{name}: {server.id}", about.phase, f"update {about.update}"]
        if about.retry_in:
            words.append(f"retry in {duration_text(about.retry_in)}")
        if about.trouble:
            words.append(f"{about.trouble_code}: {about.trouble}")
        return "  ".join(words)
    return f"{name}: no server says that it owns it"


# -- a terminal --------------------------------------------------------------------------------------------------------


def render(view: FleetView, screen: TopScreen, title: str, problem: str, height: int) -> "RenderableType":
    """Return a screen of `height` lines. `problem` says why `view` could not be updated, or is empty if `view` is
    current."""
    from rich.console import Group
    from rich.text import Text

    servers = view.servers[: max(min(MAX_SERVERS, (height - 10) // 3), 1)]
    parts: list[RenderableType] = [_line(title, "bold"), *(_line(line) for line in headline(view))]
    if problem:
        parts.append(_line(problem, "bold red"))
    if view.servers:
        parts.append(_grid(SERVER_TITLES, [server_row(server) for server in servers], SERVER_RIGHT, SERVER_FLEXIBLE))
    else:
        parts.append(_line(NO_SERVER, "bold red"))
    if len(servers) < len(view.servers):
        parts.append(_line(f"and {len(view.servers) - len(servers):,} more servers", "dim"))
    used = len(parts) + len(servers) + 4  # 4: an empty line, titles, the selected change set, the help
    rows = screen.choose(view, max(height - used, 1))
    grid = _grid(TITLES, [change_set_row(row, view.at) for row in rows], RIGHT, FLEXIBLE)
    for place, row in enumerate(rows):
        grid.rows[place].style = "reverse" if row.key == screen.selected else STYLES.get(row.activity, "")
    parts += [Text(), grid, *(Text() for _ in range(height - used - len(rows)))]
    parts.append(_line(about_line(view.servers, screen.selected) if screen.selected else "", "cyan"))
    waiting = "all" if screen.waiting_only else "waiting only"
    parts.append(_line(HELP.format(sort=screen.sort, waiting=waiting), "dim"))
    return Group(*parts)


def _line(text: str, style: str = "") -> "RenderableType":
    from rich.text import Text

    return Text(safe(text), style, no_wrap=True, overflow="ellipsis")


def _grid(
    titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int], flexible: Mapping[int, int]
) -> "Table":
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=True, header_style="bold dim")
    for place, title in enumerate(titles):
        grid.add_column(
            title,
            justify="right" if place in right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=flexible.get(place),
        )
    for row in rows:
        grid.add_row(*(Text(safe(cell)) for cell in row))
    return grid
