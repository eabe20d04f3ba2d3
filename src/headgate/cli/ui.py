"""`headgate ui`: a store, to look at."""

from __future__ import annotations

import logging
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING

import click

from .command import Command
from .options import default_url, json_option, namespace_option, url_option
from .output import answer, answer_json
from .serve import import_service

if TYPE_CHECKING:
    from ..service.serve import ListenAddresses as Listening


@click.command(
    cls=Command,
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
    settings = service.ServeSettings(
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
