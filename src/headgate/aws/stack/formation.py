"""What CloudFormation is asked for: is there a stack, make it so, delete it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .clients import Aws, code_of, message_of, translated
from .events import OnEvent, Watch
from .template import template

_NEVER_WAS = ("ROLLBACK_COMPLETE", "REVIEW_IN_PROGRESS")  # it has the name, and nothing else


class Formation:
    """The stack of this name, as CloudFormation has it."""

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
        """The same, and what is left of one that never came to be is out of the way."""
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
        """Make the stack, or change the one there is, to have these parameters: created, updated or unchanged."""
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
                # A first try that fails leaves nothing behind.
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
    """What a stack has of what the template takes; of a new one, the defaults."""
    known = {name: str(found["Default"]) for name, found in template()["Parameters"].items()}
    before = {} if stack is None else _pairs(stack.get("Parameters", ()), "ParameterKey", "ParameterValue")
    return known | {name: value for name, value in before.items() if name in known}


def outputs_of(stack: Mapping[str, Any]) -> dict[str, str]:
    return _pairs(stack.get("Outputs", ()), "OutputKey", "OutputValue")


def _pairs(found: Iterable[Mapping[str, str]], name: str, value: str) -> dict[str, str]:
    return {each[name]: each.get(value, "") for each in found}
