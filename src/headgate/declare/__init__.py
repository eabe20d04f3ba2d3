"""Limits as a file: what a namespace is to have, what would change, changing it, and writing it down.

    declaration = read_limits_file("limits.yaml")
    apply(limiter, diff(limiter, declaration))

Each that talks to the store is there twice: as it is for a SyncRateLimiter, and with an `a` before its name, to be
awaited, for a RateLimiter.
"""

from __future__ import annotations

from importlib.resources import files

from ..limiter.bind import blocking, coroutine
from .applying import ApplyConflict, apply_plan
from .declaration import Declaration, DeclaredEntity, DeclaredLimits, Place
from .difference import Diff, Difference, diff_plan
from .exporting import export_plan
from .reading import read_limits_file
from .writing import write_limits

__all__ = [
    "ApplyConflict",
    "Declaration",
    "DeclaredEntity",
    "DeclaredLimits",
    "Diff",
    "Difference",
    "Place",
    "aapply",
    "adiff",
    "aexport",
    "apply",
    "diff",
    "export",
    "limits_schema",
    "read_limits_file",
    "write_limits",
]

diff, adiff = blocking(diff_plan), coroutine(diff_plan)
apply, aapply = blocking(apply_plan), coroutine(apply_plan)
export, aexport = blocking(export_plan), coroutine(export_plan)


def limits_schema() -> str:
    """The JSON schema of a file of limits, for editors."""
    return files(__package__).joinpath("limits.schema.json").read_text()
