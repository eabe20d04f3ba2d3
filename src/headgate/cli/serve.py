"""`headgate serve`, `headgate token`, `headgate ui`: the service, tokens for it, and the dashboard alone."""

from __future__ import annotations

import logging
import sys
import threading
import webbrowser
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from types import ModuleType
from typing import TYPE_CHECKING

import click

from ..core.errors import HeadgateError
from ..core.names import check_entity_id, check_namespace
from ..service.tokens import Token, hashed, new_token, read_scopes
from .command import CliCommand
from .options import default_url, hash_key, hash_option, json_option, namespace_option, url_option
from .output import answer, answer_json

if TYPE_CHECKING:
    from ..service.serve import Listening

_MISSING = "the service comes with the extra `server`: pip install 'headgate[server]'"


def import_service() -> ModuleType:
    """What it takes is imported when it is asked for."""
    try:
        from ..service import serve as service
    except ModuleNotFoundError as error:
        raise HeadgateError(f"{_MISSING} (it lacks {error.name})") from None
    return service


@click.command(
    cls=CliCommand,
    short_help="Decide for programs in any language, over HTTP and gRPC.",
    examples=[
        "headgate serve --url redis://localhost:6379/0",
        "headgate serve --rules rules.yaml --bind 127.0.0.1:9000",
        "headgate serve --tokens tokens.yaml --bind 0.0.0.0:8080 --grpc 0.0.0.0:8081 --rules rules.yaml",
    ],
)
@click.option(
    "--rules",
    metavar="FILE",
    help="Rules for `POST /v1/check` and for Envoy, a .yaml or .toml file; or `stored`, for those that "
    "`headgate apply` has put into the namespace.",
)
@click.option(
    "--tokens", metavar="FILE", help="Who may do what, a .yaml or .toml file. `headgate token` makes entries."
)
@click.option(
    "--bind", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where to listen for HTTP."
)
@click.option(
    "--grpc",
    metavar="HOST:PORT",
    help="Where to listen for Envoy, or `off`. Without it 127.0.0.1:8081, if the rules have descriptors.",
)
@click.option(
    "--max-requests",
    metavar="SPEC",
    default="5000/second",
    show_default=True,
    help="How many requests each token may send over HTTP, or `off`.",
)
@click.option(
    "--max-connections",
    metavar="N",
    type=click.IntRange(1, 1_000_000),
    default=2000,
    show_default=True,
    help="Connections at once. One more closes the one that has waited longest for a request.",
)
@click.option(
    "--read-timeout",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
    default=20,
    show_default=True,
    help="How long the head of a request may take to arrive, and again its body.",
)
@click.option(
    "--idle-timeout",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 86_400),
    default=75,
    show_default=True,
    help="How long a connection may be idle between two requests.",
)
@click.option(
    "--shutdown-timeout",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=10,
    show_default=True,
    help="How long requests under way may take after SIGTERM or Ctrl-C.",
)
@click.option(
    "--reconcile-every",
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400),
    default=60,
    show_default=True,
    help="How often to let go of what dead holders of leases have kept. 0: never, something else does it.",
)
@click.option(
    "--reload-every",
    metavar="SECONDS",
    type=click.FloatRange(0, 86_400),
    default=2,
    show_default=True,
    help="How often to look whether the files of rules and tokens have changed. 0: only on SIGHUP.",
)
@click.option(
    "--trusted-proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    help="A proxy, or a network of them like 10.0.0.0/8, whose X-Forwarded-For says who the client is. Repeatable.",
)
@click.option(
    "--metrics-resource",
    "metrics_resources",
    metavar="NAME",
    multiple=True,
    help="A resource that /metrics tells apart; all others are `other`. Repeatable.",
)
@click.option("--dashboard/--no-dashboard", default=True, show_default=True, help="Pages for people at /ui.")
@click.option("--read-only", is_flag=True, help="Let nobody change anything on these pages. The API is as it was.")
@url_option
@namespace_option
@hash_option
@json_option
def serve(
    rules: str | None,
    tokens: str | None,
    bind: str,
    grpc: str | None,
    max_requests: str,
    max_connections: int,
    read_timeout: float,
    idle_timeout: float,
    shutdown_timeout: float,
    reconcile_every: float,
    reload_every: float,
    proxies: Sequence[str],
    metrics_resources: Sequence[str],
    dashboard: bool,
    read_only: bool,
    url: str | None,
    namespace: str,
    hash_entity_ids: bool,
    as_json: bool,
) -> None:
    """Serve the limits of a store over HTTP/JSON, and to Envoy over gRPC, until SIGTERM or Ctrl-C. SIGHUP reads the
    files of rules and tokens again, as does a change of them.

    /docs is a page that says what can be asked, and /ui a dashboard. Without --tokens everybody who reaches the service
    may do everything in the namespace, so that it listens on a loopback address only. With --tokens each has a
    namespace of its own.
    """
    service = import_service()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("headgate").setLevel(logging.INFO)
    settings = service.Settings(
        url=url or default_url(),
        namespace=namespace,
        rules=rules,
        tokens=tokens,
        bind=bind,
        grpc=grpc,
        max_requests=max_requests,
        max_connections=max_connections,
        read_timeout=read_timeout,
        idle_timeout=idle_timeout,
        shutdown_timeout=shutdown_timeout,
        reconcile_every=reconcile_every,
        reload_every=reload_every,
        proxies=proxies,
        hash_entity_ids=hash_entity_ids and hash_key(),
        dashboard=dashboard,
        read_only=read_only,
        metrics_resources=metrics_resources,
    )

    def tell(listening: Listening) -> None:
        if as_json:
            answer_json(listening.as_dict())
        else:
            envoy = f", and to Envoy on {listening.grpc}" if listening.grpc else ""
            answer(f"listening on {listening.http}{envoy}")

    service.serve(settings, tell)


@click.command(
    cls=CliCommand,
    short_help="Make a token for the service.",
    examples=[
        "headgate token checkout --scope decide",
        "headgate token ops --scope admin --namespace shop",
        "headgate token guest --scope read --days 30",
    ],
)
@click.argument("name")
@click.option(
    "--scope",
    "scopes",
    metavar="SCOPE",
    multiple=True,
    default=["decide"],
    help="What it may do: decide, which it may without this option, read, or admin, which is all. Repeatable.",
)
@click.option(
    "--days", metavar="DAYS", type=click.IntRange(1, 36_500), help="Until when it is good; without: for ever."
)
@namespace_option
@json_option
def token(name: str, scopes: Sequence[str], days: int | None, namespace: str, as_json: bool) -> None:
    """Make a token, and print it and its entry for the file that `headgate serve --tokens` reads.

    The entry has only a hash of it. The token itself is stored nowhere: what you do not keep is lost.
    """
    made = new_token()
    until = None if days is None else datetime.now(timezone.utc).replace(microsecond=0) + timedelta(days=days)
    entry = Token(check_entity_id(name, "name"), hashed(made), read_scopes(scopes), check_namespace(namespace))
    ordered = sorted(entry.scopes)
    if as_json:
        fields = {"name": entry.name, "sha256": entry.sha256, "scopes": ordered, "namespace": entry.namespace}
        answer_json({"token": made, "entry": fields | ({"expires": until.isoformat()} if until else {})})
        return
    answer(
        made,
        "",
        "tokens:",
        f"  - name: {entry.name}",
        f"    sha256: {entry.sha256}",
        f"    scopes: [{', '.join(ordered)}]",
        f"    namespace: {entry.namespace}",
        *([f'    expires: "{until.isoformat()}"'] if until else []),
    )


@click.command(
    cls=CliCommand,
    short_help="Look at a store, and change its limits, in the browser.",
    examples=["headgate ui", "headgate ui --url redis://localhost:6379/0 --read-only --open"],
)
@click.option(
    "--bind",
    metavar="HOST:PORT",
    default="127.0.0.1:8088",
    show_default=True,
    help="Where to listen: a loopback address. Port 0 is any that is free.",
)
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@click.option("--read-only", is_flag=True, help="Let nobody change anything.")
@url_option
@namespace_option
@json_option
def ui(
    bind: str,
    opens: bool,
    read_only: bool,
    url: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Open the dashboard of a store on this machine, without the API and without tokens, until Ctrl-C.

    Whoever can use this machine may do in it what you may. It shows what is stored; decisions of other processes are
    counted where they are made, in the dashboard of `headgate serve` and in metrics.
    """
    service = import_service()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    settings = service.Settings(
        url=url or default_url(),
        namespace=namespace,
        bind=bind,
        reconcile_every=0,
        read_only=read_only,
        api=False,
    )

    def tell(listening: Listening) -> None:
        where = f"{listening.http}/ui"
        if as_json:
            answer_json({"dashboard": where})
        else:
            answer(f"the dashboard is at {where} (Ctrl-C ends it)")
        if opens:
            # Some browsers do not let go of whoever opens them.
            threading.Thread(target=webbrowser.open, args=(where,), daemon=True).start()

    service.serve(settings, tell)
