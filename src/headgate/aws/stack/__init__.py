"""The AWS stack: its template, the code of its functions, deploying, examining and deleting it."""

from .cloudformation import StackEvent
from .errors import StackError, StackFailed, StackNotFound
from .options import StackOptions
from .package import Package, build_package, export_lambda
from .stack import DeletedStack, Deployed, Stack
from .status import StackStatus
from .table import MigrationRefused, migrate_table
from .template import template, to_yaml

__all__ = [
    "DeletedStack",
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
