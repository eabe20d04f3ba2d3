"""What CloudFormation is doing to a stack, as it happens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .clients import Aws, translated
from .errors import StackError, StackFailed

PATIENCE_SECONDS = 3600.0
_PAUSE_SECONDS = 1.5
_LOCAL_PAUSE_SECONDS = 0.1
# Of all that stop because another has failed, none says why.
_FOLLOWERS = ("Resource creation cancelled", "Resource update cancelled", "Resource deletion cancelled")


@dataclass(frozen=True)
class StackEvent:
    """A step. `resource` is the name in the template; the stack itself has its own name."""

    at: datetime
    resource: str
    kind: str
    status: str
    reason: str

    @property
    def failed(self) -> bool:
        return self.status.endswith("_FAILED")

    def as_dict(self) -> dict[str, Any]:
        return {
            "at": self.at.isoformat(),
            "resource": self.resource,
            "type": self.kind,
            "status": self.status,
            "reason": self.reason,
        }


OnEvent = Callable[[StackEvent], None]


class Watch:
    """Made before something is started, it knows which events are old."""

    def __init__(self, aws: Aws, name: str, stack_id: str | None) -> None:
        self._cloudformation = aws.client("cloudformation")
        self._pause = _LOCAL_PAUSE_SECONDS if aws.endpoint_url else _PAUSE_SECONDS
        self._name = name
        self._seen: set[str] = set()
        self._failures: list[StackEvent] = []
        if stack_id:
            list(self._new(stack_id))

    def follow(self, stack_id: str, expected: str, on_event: OnEvent) -> None:
        """Until it is over, which raises StackFailed if the stack's status is another than expected."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        started = False  # a status without any event is that of before
        while True:
            status, reason = self._status(stack_id)  # before the events: what comes after the last one is not missed
            for event in self._new(stack_id):
                started = True
                if event.failed and not event.reason.startswith(_FOLLOWERS):
                    self._failures.append(event)
                on_event(event)
            if started and not status.endswith("_IN_PROGRESS"):
                break
            if time.monotonic() > deadline:
                raise StackError(
                    f"stack {self._name!r} is still {status} after {PATIENCE_SECONDS:.0f} s and goes on: look at it "
                    f"with `headgate aws status --name {self._name}`"
                )
            time.sleep(self._pause)
        if status != expected:
            raise self._failed(status, reason)

    def _failed(self, status: str, reason: str) -> StackFailed:
        if not self._failures:
            return StackFailed(self._name, status, "", reason)
        first = next((event for event in self._failures if event.resource != self._name), self._failures[0])
        return StackFailed(self._name, status, f"{first.resource} ({first.kind})", first.reason)

    def _status(self, stack_id: str) -> tuple[str, str]:
        with translated():
            (stack,) = self._cloudformation.describe_stacks(StackName=stack_id)["Stacks"]
        return stack["StackStatus"], stack.get("StackStatusReason", "")

    def _new(self, stack_id: str) -> Iterator[StackEvent]:
        """Those not seen before, the oldest first. AWS has the newest first, page by page."""
        found = []
        with translated():
            for page in self._cloudformation.get_paginator("describe_stack_events").paginate(StackName=stack_id):
                news = [event for event in page["StackEvents"] if event["EventId"] not in self._seen]
                found += news
                if len(news) < len(page["StackEvents"]):
                    break
        for event in reversed(found):
            self._seen.add(event["EventId"])
            yield StackEvent(
                at=event["Timestamp"],
                resource=event["LogicalResourceId"],
                kind=event.get("ResourceType", ""),
                status=event.get("ResourceStatus", ""),
                reason=event.get("ResourceStatusReason", ""),
            )
