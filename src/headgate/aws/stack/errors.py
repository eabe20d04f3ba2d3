"""What can go wrong with a stack."""

from __future__ import annotations

from ...core.errors import HeadgateError

_ENDS = {
    "DELETE_COMPLETE": "could not be created, and nothing is left of it",
    "UPDATE_ROLLBACK_COMPLETE": "could not be updated, and is as it was",
    "DELETE_FAILED": "could not be deleted",
}


class StackError(HeadgateError):
    """AWS refused, or the stack is not in a state for what was asked."""


class StackNotFound(StackError, LookupError):
    """There is no stack of this name."""


class StackFailed(StackError):
    """CloudFormation could not do it. `resource` failed first, because of `reason`; `status` is the stack's own now."""

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
