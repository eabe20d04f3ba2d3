"""Limits in a file: reading it, comparing it with what is stored, applying it, exporting to it.

    declaration = read_limits_file("limits.yaml")
    apply(limiter, diff(limiter, declaration))

The functions that talk to the store exist twice: `diff`, `apply` and `export` for a SyncRateLimiter; `adiff`, `aapply`
and `aexport`, to be awaited, for a RateLimiter.
"""

from __future__ import annotations

from importlib.resources import files

from ..limiter.bind import blocking, coroutine
from .applying import ApplyConflict, apply_plan
from .declaration import Declaration, DeclaredEntity, DeclaredItem, DeclaredLimits
from .difference import Diff, Difference, diff_plan
from .reading import read_limits_file
from .stored import export_plan
from .writing import write_limits

__all__ = [
    "ApplyConflict",
    "Declaration",
    "DeclaredEntity",
    "DeclaredItem",
    "DeclaredLimits",
    "Diff",
    "Difference",
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
