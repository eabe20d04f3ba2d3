"""Bringing the items of a table from an older layout to the one that this code uses.

To add one: a module with a class that has what `Migration` says, in MIGRATIONS, and `versions.SCHEMA` raised to its
number.
"""

from __future__ import annotations

from .older import FromOlder
from .runner import LEASE_MS, Migration, Migrator, PageDone, Report, Run

MIGRATIONS: tuple[Migration, ...] = (FromOlder(),)

__all__ = ["LEASE_MS", "MIGRATIONS", "FromOlder", "Migration", "Migrator", "PageDone", "Report", "Run"]
