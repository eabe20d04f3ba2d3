"""The stack on AWS: its template, the code of its functions, and how it is deployed, looked at and deleted."""

from .errors import StackError, StackFailed, StackNotFound
from .events import StackEvent
from .migrate import MigrationRefused, migrate_table
from .options import StackOptions
from .package import Package, build_package, export_lambda
from .stack import Deleted, Deployed, Stack
from .status import StackStatus
from .template import template, to_yaml

__all__ = [
    "Deleted",
    "Deployed",
    "MigrationRefused",
    "Package",
    "Stack",
    "StackError",
    "StackEvent",
    "StackFailed",
    "StackNotFound",
    "StackOptions",
    "StackStatus",
    "build_package",
    "export_lambda",
    "migrate_table",
    "template",
    "to_yaml",
]
