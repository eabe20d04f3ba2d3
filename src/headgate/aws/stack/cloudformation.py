"""CloudFormation: creating, updating and deleting a stack, and its events meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .clients import Aws, code_of, message_of, translated
from .errors import StackError, StackFailed
from .template import template

PATIENCE_SECONDS = 3600.0
_PAUSE_SECONDS = 1.5
_LOCAL_PAUSE_SECONDS = 0.1
# Events of resources that were cancelled because another failed do not say why.
_FOLLOWERS = ("Resource creation cancelled", "Resource update cancelled", "Resource deletion cancelled")


@dataclass(frozen=True)
class StackEvent:
    """A step. `resource` is the name in the template; for the stack itself, its own name."""

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
    """Follows the events of an operation. Create it before the operation starts, so that it knows the old events."""

    def __init__(self, aws: Aws, name: str, stack_id: str | None) -> None:
        self._cloudformation = aws.client("cloudformation")
        self._pause = _LOCAL_PAUSE_SECONDS if aws.endpoint_url else _PAUSE_SECONDS
        self._name = name
        self._seen: set[str] = set()
        self._failures: list[StackEvent] = []
        if stack_id:
            list(self._new(stack_id))

    def follow(self, stack_id: str, expected: str, on_event: OnEvent) -> None:
        """Wait until the operation ends. Raises StackFailed if the status is not the expected one."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        started = False  # a status without events is the old one
        while True:
            status, reason = self._status(stack_id)  # read before the events, so that none is missed
            for event in self._new(stack_id):
                started = True
                if event.failed and not event.reason.startswith(_FOLLOWERS):
                    self._failures.append(event)
                on_event(event)
            if started and not status.endswith("_IN_PROGRESS"):
                break
            if time.monotonic() > deadline:
                raise StackError(
                    f"stack {self._name!r} is still {status} after {PATIENCE_SECONDS:.0f} s and continues: watch it "
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
        """New events, the oldest first. AWS returns the newest first, page by page."""
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


_NEVER_WAS = ("ROLLBACK_COMPLETE", "REVIEW_IN_PROGRESS")  # it has a name, and no resources


class CloudFormationStack:
    """The stack with this name, as CloudFormation sees it."""

    def __init__(self, aws: Aws, name: str) -> None:
        self._aws = aws
        self._cloudformation = aws.client("cloudformation")
        self._name = name

    def described(self) -> dict[str, Any] | None:
        with translated():
            try:
                (stack,) = self._cloudformation.describe_stacks(StackName=self._name)["Stacks"]
            except self._cloudformation.exceptions.ClientError as error:
                if code_of(error) == "ValidationError" and "does not exist" in message_of(error):
                    return None
                raise
        return None if stack["StackStatus"] == "DELETE_COMPLETE" else dict(stack)

    def cleared(self, on_event: OnEvent) -> dict[str, Any] | None:
        """The same, after removing a stack that was never created completely."""
        stack = self.described()
        if stack is None or stack["StackStatus"] not in _NEVER_WAS:
            return stack
        self.delete(stack["StackId"], on_event)
        return None

    def bring(
        self,
        stack: Mapping[str, Any] | None,
        values: Mapping[str, str],
        tags: Mapping[str, str] | None,
        on_event: OnEvent,
    ) -> str:
        """Create the stack, or update it, with these parameters. Returns created, updated or unchanged."""
        request: dict[str, Any] = {
            "StackName": self._name,
            "TemplateBody": json.dumps(template(), separators=(",", ":")),
            "Parameters": [{"ParameterKey": name, "ParameterValue": value} for name, value in values.items()],
            "Capabilities": ["CAPABILITY_IAM"],
        }
        if tags is not None:
            request["Tags"] = [{"Key": name, "Value": value} for name, value in tags.items()]
        if stack is None:
            watch = Watch(self._aws, self._name, None)
            with translated():
                # A first deploy that fails leaves nothing behind.
                made = self._cloudformation.create_stack(**request, OnFailure="DELETE")
            watch.follow(made["StackId"], "CREATE_COMPLETE", on_event)
            return "created"
        watch = Watch(self._aws, self._name, stack["StackId"])
        with translated():
            try:
                self._cloudformation.update_stack(**request)
            except self._cloudformation.exceptions.ClientError as error:
                if "No updates are to be performed" in message_of(error):
                    return "unchanged"
                raise
        watch.follow(stack["StackId"], "UPDATE_COMPLETE", on_event)
        return "updated"

    def delete(self, stack_id: str, on_event: OnEvent) -> None:
        watch = Watch(self._aws, self._name, stack_id)
        with translated():
            self._cloudformation.delete_stack(StackName=stack_id)
        watch.follow(stack_id, "DELETE_COMPLETE", on_event)


def parameters_of(stack: Mapping[str, Any] | None) -> dict[str, str]:
    """The parameters of a stack that the template still has; for a new stack, the defaults."""
    known = {name: str(found["Default"]) for name, found in template()["Parameters"].items()}
    before = {} if stack is None else _pairs(stack.get("Parameters", ()), "ParameterKey", "ParameterValue")
    return known | {name: value for name, value in before.items() if name in known}


def outputs_of(stack: Mapping[str, Any]) -> dict[str, str]:
    return _pairs(stack.get("Outputs", ()), "OutputKey", "OutputValue")


def _pairs(found: Iterable[Mapping[str, str]], name: str, value: str) -> dict[str, str]:
    return {each[name]: each.get(value, "") for each in found}
