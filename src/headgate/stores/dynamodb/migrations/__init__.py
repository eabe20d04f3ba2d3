"""Migration of zae-limiter tables to headgate: into a new table, or in place."""

from __future__ import annotations

from .record import LEASE_MS
from .runner import MigrationRefused, MigrationReport, Migrator

__all__ = ["LEASE_MS", "MigrationRefused", "MigrationReport", "Migrator"]
