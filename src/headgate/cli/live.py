"""An answer that is drawn anew in its place, with rich."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from rich.console import Group
from rich.live import Live
from rich.text import Text

from .output import Table, printable
from .tables import built, console


def live(look: Callable[[], tuple[str, str | Table]], every: float) -> NoReturn:
    """Show a title and what is looked up, again and again, until Ctrl-C."""
    with Live(console=console(), auto_refresh=False) as screen:
        while True:
            title, found = look()
            below = built(found) if isinstance(found, Table) else Text(printable(found))
            screen.update(Group(Text(printable(title), style="bold"), "", below), refresh=True)
            time.sleep(every)
