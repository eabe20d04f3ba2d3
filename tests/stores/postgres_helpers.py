"""Helpers for the tests of the PostgreSQL store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from headgate.stores import open_store
from local_servers.postgres import PostgresServer

TABLES = ("buckets", "slots", "usage", "records")


def emptied(server: PostgresServer) -> str:
    """The URL of the server, with nothing stored there."""
    with server.connect() as connection:
        connection.execute("; ".join(f"DELETE FROM headgate.{table}" for table in TABLES))
    return server.url


def set_up(url: str) -> None:
    store = open_store(url, 10.0)
    store.setup()
    store.close()


def race(works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Each in a thread of its own; what they return, or the first error."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run(work: Callable[[], Any]) -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results
