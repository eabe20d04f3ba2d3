"""`headgate serve`, `headgate token`, `headgate ui`: the service, tokens for it, and the dashboard alone."""

from __future__ import annotations

import logging
import os
import sys
import threading
import webbrowser
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from types import ModuleType
from typing import TYPE_CHECKING

import click

from ..core.errors import HeadgateError, ValidationError
from ..core.names import check_entity_id, check_namespace
from ..service.tokens import Token, hashed, new_token, read_scopes
from .command import CliCommand
from .options import (
    bind_option,
    count_option,
    default_url,
    hash_key,
    hash_option,
    json_option,
    namespace_option,
    seconds_option,
    url_option,
)
from .output import answer, answer_json

if TYPE_CHECKING:
    from ..service.serve import ListenAddresses

SECRET_VARIABLE = "HEADGATE_WEBHOOK_SECRET"
_MISSING = "the service needs the extra `server`: pip install 'headgate[server]'"


def _import_service() -> ModuleType:
    """The service, which needs an extra, with its log on standard error."""
    try:
        from ..service import serve as service
    except ModuleNotFoundError as error:
        raise HeadgateError(f"{_MISSING} ({error.name} is missing)") from None
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return service


@click.command(
    cls=CliCommand,
    short_help="Serve decisions to programs in any language, over HTTP and gRPC.",
    examples=[
        "headgate serve --url redis://localhost:6379/0",
        "headgate serve --rules rules.yaml --bind 127.0.0.1:9000",
        "headgate serve --tokens tokens.yaml --bind 0.0.0.0:8080 --grpc 0.0.0.0:8081 --rules rules.yaml",
    ],
)
@click.option(
    "--rules",
    metavar="FILE",
    help="Rules for `POST /v1/check` and for Envoy: a .yaml or .toml file, or `stored` for the rules that "
    "`headgate apply` has stored in the namespace.",
)
@click.option(
    "--tokens",
    metavar="FILE",
    help="Tokens and their permissions: a .yaml or .toml file. `headgate token` makes entries.",
)
@bind_option("127.0.0.1:8080", "The address for HTTP.")
@click.option(
    "--grpc",
    metavar="HOST:PORT",
    help="The address for Envoy, or `off`. Default: 127.0.0.1:8081 if the rules have descriptors.",
)
@click.option(
    "--max-requests",
    metavar="SPEC",
    default="5000/second",
    show_default=True,
    help="Limit of HTTP requests for each token, or `off`.",
)
@count_option(
    "--max-connections",
    1_000_000,
    "Maximum of open connections. One more closes the connection that has been idle longest.",
    default=2000,
)
@count_option(
    "--workers",
    64,
    "Number of processes that share the ports. More than 1 needs a store that processes can share.",
    default=1,
)
@seconds_option("--read-timeout", 0.1, 3600, "Timeout for the head of a request, and again for its body.", default=20)
@seconds_option("--idle-timeout", 0.1, 86_400, "Timeout of an idle connection.", default=75)
@seconds_option(
    "--shutdown-timeout", 0, 3600, "Time for running requests to finish after SIGTERM or Ctrl-C.", default=10
)
@seconds_option(
    "--reconcile-every", 0, 86_400, "Seconds between sweeps of expired leases; 0 disables them.", default=60
)
@seconds_option(
    "--reload-every",
    0,
    86_400,
    "Seconds between checks for changed files of rules and tokens; 0 reloads only on SIGHUP.",
    default=2,
)
@click.option(
    "--trusted-proxy",
    "proxies",
    metavar="ADDRESS",
    multiple=True,
    help="A proxy, or a network like 10.0.0.0/8, whose X-Forwarded-For header is trusted. Repeatable.",
)
@click.option(
    "--metrics-resource",
    "metrics_resources",
    metavar="NAME",
    multiple=True,
    help="A resource with its own label in /metrics; all others are `other`. Repeatable.",
)
@click.option(
    "--webhook",
    metavar="URL",
    help="An http or https URL to which alerts are posted. It needs a secret, to sign them with: in "
    "HEADGATE_WEBHOOK_SECRET, or in a file.",
)
@click.option(
    "--webhook-secret-file",
    metavar="FILE",
    help="The file with the secret of the webhook, instead of HEADGATE_WEBHOOK_SECRET.",
)
@click.option("--dashboard/--no-dashboard", default=True, show_default=True, help="Serve the dashboard at /ui.")
@click.option("--read-only", is_flag=True, help="Make the dashboard read-only. The API is not affected.")
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
    workers: int,
    read_timeout: float,
    idle_timeout: float,
    shutdown_timeout: float,
    reconcile_every: float,
    reload_every: float,
    proxies: Sequence[str],
    metrics_resources: Sequence[str],
    webhook: str | None,
    webhook_secret_file: str | None,
    dashboard: bool,
    read_only: bool,
    url: str | None,
    namespace: str,
    hash_entity_ids: bool,
    as_json: bool,
) -> None:
    """Serve the limits of a store over HTTP/JSON, and to Envoy over gRPC, until SIGTERM or Ctrl-C. The files of rules
    and tokens are reloaded when they change, and on SIGHUP.

    /docs documents the API, and /ui is a dashboard. Without --tokens every client may do everything in the namespace,
    so the service listens on a loopback address only. With --tokens each token has a namespace.
    """
    service = _import_service()
    logging.getLogger("headgate").setLevel(logging.INFO)
    settings = service.ServeSettings(
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
        workers=workers,
        webhook=webhook,
        webhook_secret=_webhook_secret(webhook, webhook_secret_file),
    )

    def tell(listening: ListenAddresses) -> None:
        if as_json:
            answer_json(listening.as_dict())
        else:
            envoy = f", and to Envoy on {listening.grpc}" if listening.grpc else ""
            answer(f"listening on {listening.http}{envoy}")

    if workers == 1:
        service.serve(settings, tell)
        return
    from ..service.workers import serve_workers

    serve_workers(settings, tell)


def _webhook_secret(webhook: str | None, path: str | None) -> bytes:
    from ..service.endpoint import read_secret

    if webhook is None:
        if path is not None:
            raise ValidationError("--webhook-secret-file is for a webhook: pass --webhook URL too")
        return b""
    return os.environ.get(SECRET_VARIABLE, "").encode() if path is None else read_secret(path)


@click.command(
    cls=CliCommand,
    short_help="Create a token for the service.",
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
    help="A permission: decide (the default), read, or admin, which includes all. Repeatable.",
)
@click.option(
    "--days", metavar="DAYS", type=click.IntRange(1, 36_500), help="Days until the token expires. Default: never."
)
@namespace_option
@json_option
def token(name: str, scopes: Sequence[str], days: int | None, namespace: str, as_json: bool) -> None:
    """Create a token, and print it with its entry for the file of `headgate serve --tokens`.

    The entry contains only a hash. The token itself is not stored anywhere: keep it.
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
    short_help="Open the dashboard of a store in the browser.",
    examples=["headgate ui", "headgate ui --url redis://localhost:6379/0 --read-only --open"],
)
@bind_option("127.0.0.1:8088", "The address: a loopback address. Port 0 picks a free port.")
@click.option("--open", "opens", is_flag=True, help="Open the browser.")
@click.option("--read-only", is_flag=True, help="Make the dashboard read-only.")
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
    """Serve the dashboard of a store on this machine, without the API and without tokens, until Ctrl-C.

    Every user of this machine can use it with your permissions. It shows what is stored. It does not count the
    decisions of other processes: see the dashboard of `headgate serve`, or metrics.
    """
    service = _import_service()
    settings = service.ServeSettings(
        url=url or default_url(),
        namespace=namespace,
        bind=bind,
        reconcile_every=0,
        read_only=read_only,
        api=False,
    )

    def tell(listening: ListenAddresses) -> None:
        where = f"{listening.http}/ui"
        if as_json:
            answer_json({"dashboard": where})
        else:
            answer(f"the dashboard is at {where} (stop it with Ctrl-C)")
        if opens:
            # Some browsers block the process that opens them.
            threading.Thread(target=webbrowser.open, args=(where,), daemon=True).start()

    service.serve(settings, tell)
