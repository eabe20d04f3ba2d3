"""The errors of a stack."""

from __future__ import annotations

from ...core.errors import HeadgateError

_ENDS = {
    "DELETE_COMPLETE": "could not be created, and was removed",
    "UPDATE_ROLLBACK_COMPLETE": "could not be updated, and is as before",
    "DELETE_FAILED": "could not be deleted",
}


class StackError(HeadgateError):
    """AWS refused the request, or the state of the stack does not allow it."""


class StackNotFound(StackError, LookupError):
    """There is no stack with this name."""


class StackFailed(StackError):
    """CloudFormation failed. `resource` failed first, with `reason`; `status` is the stack's status now."""

    def __init__(self, name: str, status: str, resource: str, reason: str) -> None:
        super().__init__(name, status, resource, reason)
        self.name = name
        self.status = status
        self.resource = resource
        self.reason = reason

    def __str__(self) -> str:
        what = _ENDS.get(self.status, f"ended as {self.status}")
        why = f"{self.resource} failed: {self.reason}" if self.resource else self.reason or "no resource says why"
        return f"stack {self.name!r} {what}: {why}"
