"""`rebaser console`: serves the web console. `rebaser dev` opens the same console."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rebaser.cli.options import ACCESS_VALUES, DEFAULT_NATS, Nats, Prefix
from rebaser.cli.output import console as terminal

if TYPE_CHECKING:
    import socket
    from types import ModuleType

    from rebaser.console.access.rules import AccessRule
    from rebaser.settings import Settings
    from rebaser_client import RebaserClient

DEFAULT_PORT = 8420
USER_HEADER = "X-Forwarded-User"


def console(
    *,
    http: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve the console at this address. HOST defaults to 127.0.0.1; port 0 is any free port.",
        ),
    ] = f"127.0.0.1:{DEFAULT_PORT}",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PORT]",
            help="Another name under which browsers reach the console, besides localhost. Can be repeated.",
            show_default=False,
            allow_from_autoenv=False,
        ),
    ] = None,
    auth: Annotated[
        Literal["none", "token", "proxy"],
        typer.Option(
            help="Who may use the console: everybody who can reach it; those who know the token in --token-file; or the"
            " users that a proxy at --trust-proxy identifies.",
            allow_from_autoenv=False,
        ),
    ] = "none",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --auth token: the file that contains the token, which has 20 to 1,024 characters.",
            show_default=False,
            allow_from_autoenv=False,
        ),
    ] = None,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR",
            help="With --auth proxy: the addresses of the proxy, such as 10.0.0.0/24. Can be repeated.",
            show_default=False,
            allow_from_autoenv=False,
        ),
    ] = None,
    user_header: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="With --auth proxy: the header in which the proxy sends the user's name.",
            allow_from_autoenv=False,
        ),
    ] = USER_HEADER,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Without --auth, accept an address that other machines can reach, and requests that a proxy forwarded."
            " Everybody who can reach the address or the proxy can read all values, and change them with --actions.",
            allow_from_autoenv=False,
        ),
    ] = False,
    actions: Annotated[
        bool,
        typer.Option(
            "--actions",
            help="Allow changes: edit, branch, settle conflicts, apply, redrive.",
            allow_from_autoenv=False,
        ),
    ] = False,
    hide_values: Annotated[
        bool,
        typer.Option(
            "--hide-values",
            help="Show only kinds and sizes of values, and no text that may quote one. Excludes --actions.",
            allow_from_autoenv=False,
        ),
    ] = False,
    spark_ui_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="The address of the Spark UI, to which the pages of updates link.",
            show_default=False,
            allow_from_autoenv=False,
        ),
    ] = "",
    trace_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="The address of a trace, to which commits and requests with a trace link, with {trace_id} for its id:"
            " http://jaeger:16686/trace/{trace_id}.",
            show_default=False,
            allow_from_autoenv=False,
        ),
    ] = "",
    nats: Nats = DEFAULT_NATS,
    prefix: Prefix = "",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option(envvar="REBASER_LOG_LEVEL", help="Lowest level that is logged."),
    ] = "info",
    log_format: Annotated[
        Literal["auto", "console", "json"],
        typer.Option(envvar="REBASER_LOG_FORMAT", help="Format of log events."),
    ] = "auto",
) -> int:
    """Serve the web console: servers, change sets and what they wait for, live in a browser.

    The console only reads, unless --actions allows changes. It needs the permissions of a reader or, with --actions,
    those of an editor. It also works while no server is running. If NATS cannot be reached, its pages say so.

    By default, it listens only on this machine, and answers only requests that are addressed to this machine; from
    another machine, use an SSH tunnel: ssh -L 8420:127.0.0.1:8420 HOST. Another address needs --auth. Ctrl-C stops the
    console.
    """
    from rebaser.cli import lazy_modules, logs
    from rebaser.cli.errors import usage_error
    from rebaser.cli.runner import run_async
    from rebaser.console.access.options import is_host
    from rebaser.settings import load_settings

    lazy_modules.hide_pandas()
    logs.configure(log_level, log_format)
    settings = load_settings(nats_url=nats, prefix=prefix, **ACCESS_VALUES.get())
    if hide_values and actions:
        raise usage_error("--hide-values excludes --actions: who may define a formula can find out each value")
    if spark_ui_url and not spark_ui_url.startswith(("http://", "https://")):
        raise usage_error("--spark-ui-url has to begin with http:// or https://")
    if trace_url and not (trace_url.startswith(("http://", "https://")) and "{trace_id}" in trace_url):
        raise usage_error("--trace-url has to begin with http:// or https://, and to contain {trace_id}")
    for name in allow_host or ():
        if not is_host(name):
            raise usage_error(f"--allow-host: {name!r} is not NAME or NAME:PORT, such as console.example.com")
    access = console_access(auth, token_file, trust_proxy or [], user_header)

    async def serve() -> None:
        from anyio import sleep_forever

        async with open_console(
            settings,
            http,
            names=allow_host or [],
            insecure=insecure,
            actions=actions,
            access=access,
            hide_values=hide_values,
            spark_ui=spark_ui_url,
            trace_url=trace_url,
        ) as url:
            terminal.write_line(f"console {url}")
            await sleep_forever()

    return run_async(serve, daemon=True)


def console_access(auth: str, token_file: Path | None, networks: list[str], header: str) -> "AccessRule":
    """Return the rule that says who may use the console. Raise a usage error if the options contradict each other, and
    `ConfigError` if the file does not contain a valid token."""
    from rebaser.cli.errors import usage_error
    from rebaser.console.access.rules import (
        OpenAccess,
        ProxyAccess,
        TokenAccess,
        is_user_header,
        read_networks,
        read_token,
    )

    if (token_file is not None) != (auth == "token"):
        raise usage_error("use --auth token and --token-file together")
    if bool(networks) != (auth == "proxy"):
        raise usage_error(
            "use --auth proxy and --trust-proxy together: the addresses of the trusted proxy are required"
        )
    if auth != "proxy" and header != USER_HEADER:
        raise usage_error("use --auth proxy and --user-header together")
    if not is_user_header(header):
        raise usage_error(f"--user-header: {header!r} is no header in which only a proxy names a user")
    if token_file is not None:
        return TokenAccess(read_token(token_file))
    if auth != "proxy":
        return OpenAccess()
    try:
        return ProxyAccess(header, read_networks(networks))
    except ValueError as error:
        raise usage_error(f"--trust-proxy: {error}") from None


@asynccontextmanager
async def open_console(
    settings: "Settings",
    address: str,
    *,
    names: list[str] | None = None,
    insecure: bool = False,
    actions: bool = False,
    access: "AccessRule | None" = None,
    hide_values: bool = False,
    spark_ui: str = "",
    trace_url: str = "",
    playground: bool = False,
    fall_back: bool = False,
) -> AsyncGenerator[str, None]:
    """Serve a console for the installation that `settings` describe, and yield its URL.

    If `fall_back` is true and the port in `address` is in use, use any free port. Raise `ConfigError` if the address
    cannot be used or is not allowed.
    """
    from anyio import to_thread

    from rebaser import __version__
    from rebaser.cli.commands.observing.playground import make_playground
    from rebaser.cli.connect import client_for
    from rebaser.cli.errors import usage_error
    from rebaser.ops.address import parse_address

    try:
        host, _ = parse_address(address)
    except ValueError as error:
        raise usage_error(f"--http: {error}") from None
    server = await to_thread.run_sync(_import_server)
    from rebaser.console.access.options import ConsoleOptions, accepted_hosts, check_exposure
    from rebaser.console.access.rules import OpenAccess

    access = access or OpenAccess()
    check_exposure(host, access, insecure=insecure)
    tools = make_playground() if playground else None

    def connect() -> "AbstractAsyncContextManager[RebaserClient]":
        return client_for(settings)

    with closing(await _listen(address, host, fall_back)) as listener:
        port = listener.getsockname()[1]
        hosts = accepted_hosts(host, port, names or ())
        options = ConsoleOptions(hosts, actions, access, hide_values, tools, spark_ui, insecure, trace_url)
        async with server.console(connect, listener, options, __version__):
            yield f"http://{f'[{host}]' if ':' in host else host}:{port}/"


async def _listen(address: str, host: str, fall_back: bool) -> "socket.socket":
    from rebaser.ops.address import listen
    from rebaser_core.errors import ConfigError

    try:
        return await listen(address)
    except ConfigError:
        if not fall_back:
            raise
        return await listen(f"{host}:0")


def _import_server() -> "ModuleType":
    """Import the console's server. This takes 0.2 s, and requires the packages of the extra `console`."""
    from rebaser_core.errors import ConfigError

    try:
        from rebaser.console import server
    except ImportError as error:
        raise ConfigError(f"the console needs the package {error.name}: pip install 'rebaser[console]'") from None
    return server
