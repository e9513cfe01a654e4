"""The options of a console, and the names under which it may be reached."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

from rebaser.console.access.rules import AccessRule, OpenAccess
from rebaser_core.errors import ConfigError
from rebaser_core.updates import Derive, Update

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class Playground:
    """What the playground of `rebaser dev` does with the tools of the command line. Both run in a thread.

    - `derive` returns the update that defines the value of an id by a formula. Raises `UnprocessableError`.
    - `demo` returns the updates that create the graph of the demo.
    """

    derive: Callable[[str, str], Derive]
    demo: Callable[[], list[Update]]


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """The options of a console.

    - `hosts`: the values of the header `Host` that are accepted, in lower case. A page of another site cannot reach the
      console under a name of its own (DNS rebinding).
    - `actions`: whether requests that change something are accepted.
    - `access`: who may use the console.
    - `hide_values`: whether viewers see only kinds and sizes of values. Excludes `actions`: somebody who may define a
      formula learns from its result what they like.
    - `playground`: what the playground needs; None without one.
    - `trace_url`: the address of the page of a trace, with `{trace_id}` in place of its id; empty without one.
    - `insecure`: whether to answer requests that a proxy forwarded, although viewers do not have to log in.
    - `spark_ui`: the address of the Spark UI, to which the pages of updates link; empty without one.
    """

    hosts: frozenset[str]
    actions: bool = False
    access: AccessRule = field(default_factory=OpenAccess)
    hide_values: bool = False
    playground: Playground | None = None
    spark_ui: str = ""
    insecure: bool = False
    trace_url: str = ""

    @property
    def is_local(self) -> bool:
        """Whether the console is meant only for this machine: it has no login, and `--insecure` was not given."""
        return self.access.kind == "none" and not self.insecure


def check_exposure(host: str, access: AccessRule, *, insecure: bool) -> None:
    """Raise `ConfigError` if `host` is not a loopback address, unless viewers have to log in, or the user said that
    this is intended."""
    if insecure or access.kind != "none" or is_loopback(host):
        return
    raise ConfigError(
        f"everybody who can reach {host} could read all values, and with --actions change them: add --auth token or"
        " --auth proxy; or keep the console on 127.0.0.1 and reach it through an SSH tunnel; or add --insecure"
    )


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can connect to `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def accepted_hosts(host: str, port: int, names: Collection[str]) -> frozenset[str]:
    """Return the accepted values of the header `Host`: loopback names, the address itself, and `names`, which may have
    a port."""
    own = f"[{host}]" if ":" in host else host
    accepted = {f"{name}:{port}" for name in (*LOCAL_NAMES, own)}
    if port == 80:
        accepted |= {*LOCAL_NAMES, own}
    for name in names:
        accepted |= {name, f"{name}:{port}"}
    return frozenset(name.lower() for name in accepted)


def is_host(text: str) -> bool:
    """Return whether `text` is a name or an address that the header `Host` can contain, with or without a port."""
    try:
        parts = urlsplit(f"//{text}")
        return parts.netloc == text and bool(parts.hostname) and "@" not in text and (parts.port or 1) > 0
    except ValueError:
        return False


def other_names(hosts: Collection[str]) -> list[str]:
    """Return the accepted `Host` values that are not loopback names."""
    names = {host: urlsplit(f"//{host}").hostname or "" for host in hosts}
    return sorted(host for host, name in names.items() if not is_loopback(name))
