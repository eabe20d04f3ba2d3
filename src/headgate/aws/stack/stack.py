"""A stack: deploying, updating and deleting it. Its status is in status.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from ...core.errors import ValidationError
from ...stores.dynamodb.namespaces import RegisteredNamespace
from .clients import Aws
from .cloudformation import CloudFormationStack, OnEvent, outputs_of, parameters_of
from .errors import StackError, StackFailed, StackNotFound
from .options import StackOptions, check_together
from .s3 import CodeBucket, remove_bucket
from .status import StackStatus, read_status
from .table import Registry, is_protected, settle_table

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{2,47}")


@dataclass(frozen=True)
class Deployed:
    """`action` is created, updated or unchanged; `namespace` is the one that was registered, if any."""

    name: str
    action: str
    url: str
    namespace: str | None
    namespace_id: str | None
    outputs: Mapping[str, str]

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "outputs": dict(self.outputs)}


@dataclass(frozen=True)
class DeletedStack:
    """`kept_bucket`: the archive, which outlives its stack."""

    name: str
    kept_bucket: str | None
    deleted_bucket: str | None

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class Stack:
    """The stack `name`, whose table has the same name.

    Region, profile and keys (an access key and its secret) come from the AWS configuration if not given. The methods
    call `on_event` with each StackEvent.
    """

    def __init__(
        self,
        name: str = "headgate",
        *,
        region: str | None = None,
        profile: str | None = None,
        endpoint_url: str | None = None,
        keys: tuple[str, str] | None = None,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValidationError(
                f"stack name {name!r} is not allowed: 3 to 48 of A-Z a-z 0-9 - and the first a letter"
            )
        self.name = name
        self._profile = profile
        self._aws = Aws(region, profile, endpoint_url, keys)
        self._formation = CloudFormationStack(self._aws, name)

    def __enter__(self) -> Stack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._aws.close()

    @property
    def url(self) -> str:
        """The URL of the store, for limiters."""
        options = {"region": self._aws.region}
        if self._aws.endpoint_url:
            options["endpoint_url"] = self._aws.endpoint_url
        if self._profile:
            options["profile"] = self._profile
        return f"dynamodb://{self.name}?{urlencode(options, safe=':/')}"

    def deploy(
        self,
        options: StackOptions | None = None,
        *,
        namespace: str | None = None,
        functions: bool | None = None,
        tags: Mapping[str, str] | None = None,
        code_bucket: str | None = None,
        on_event: OnEvent = lambda event: None,
    ) -> Deployed:
        """Create the stack, or update it.

        `namespace` is registered, and the policies are restricted to it; with "" they are for the whole table again. A
        new stack has policies for the whole table, and registers "default". Without `functions`, usage is only counted
        from the stream if `headgate aws aggregate` runs somewhere.
        """
        options = options or StackOptions()
        if namespace is not None and options.namespace_id is not None:
            raise ValidationError("pass namespace or namespace_id, not both")
        stack = self._formation.cleared(on_event)
        values = self._values(stack, options, namespace)
        bucket = CodeBucket(self._aws, self.name, code_bucket or values["CodeBucket"])
        values |= bucket.parameters(upload=_has_functions(stack, values) if functions is None else functions)
        check_together(values)
        action = self._bring(stack, values, tags, bucket, on_event)
        registered = self._settle(namespace, values)
        if namespace and registered and stack is None:
            self._formation.bring(self._existing(), values | {"NamespaceId": registered.id}, tags, on_event)
        return self._deployed(action, registered)

    def _values(self, stack: Mapping[str, Any] | None, options: StackOptions, namespace: str | None) -> dict[str, str]:
        """The parameters that the stack will have."""
        values = parameters_of(stack) | options.given()
        if namespace is not None:
            # In a new stack there is no table yet to register it in.
            values["NamespaceId"] = self._register(namespace).id if namespace and stack else ""
        return values

    def _deployed(self, action: str, registered: RegisteredNamespace | None) -> Deployed:
        name, namespace_id = (None, None) if registered is None else (registered.name, registered.id)
        return Deployed(self.name, action, self.url, name, namespace_id, self.outputs())

    def update(self, options: StackOptions | None = None, **more: Any) -> Deployed:
        """Like `deploy`, but the stack must exist."""
        self._existing()
        return self.deploy(options, **more)

    def status(self) -> StackStatus:
        return read_status(self._aws, self._existing())

    def outputs(self) -> dict[str, str]:
        return outputs_of(self._existing())

    def delete(self, *, delete_archive: bool = False, on_event: OnEvent = lambda event: None) -> DeletedStack:
        """Delete the stack with its table. The archive of audit events stays, unless `delete_archive`."""
        stack = self._existing()
        if is_protected(self._aws, self.name):
            raise StackError(
                f"table {self.name!r} is protected from being deleted: turn that off first with "
                f"`headgate aws update --name {self.name} --no-deletion-protection`"
            )
        archive = outputs_of(stack).get("ArchiveBucketName")
        self._formation.delete(stack["StackId"], on_event)
        before = parameters_of(stack)
        if before["CodeKey"]:
            CodeBucket(self._aws, self.name, before["CodeBucket"]).clean_up()
        if archive and delete_archive:
            remove_bucket(self._aws, archive)
        return DeletedStack(self.name, None if delete_archive else archive, archive if delete_archive else None)

    def _existing(self) -> dict[str, Any]:
        stack = self._formation.described()
        if stack is None:
            raise StackNotFound(
                f"there is no stack {self.name!r} in {self._aws.endpoint_url or self._aws.region}: "
                f"`headgate aws deploy --name {self.name}` makes it"
            )
        return stack

    def _register(self, namespace: str) -> RegisteredNamespace:
        return Registry(self._aws, self.name).register(namespace)

    def _bring(
        self,
        stack: dict[str, Any] | None,
        values: Mapping[str, str],
        tags: Mapping[str, str] | None,
        bucket: CodeBucket,
        on_event: OnEvent,
    ) -> str:
        try:
            action = self._formation.bring(stack, values, tags, on_event)
        except StackFailed:
            if stack is None and values["CodeKey"]:
                bucket.clean_up()
            raise
        if values["CodeKey"] or parameters_of(stack)["CodeKey"]:
            bucket.clean_up(but=values["CodeKey"])
        return action

    def _settle(self, namespace: str | None, values: Mapping[str, str]) -> RegisteredNamespace | None:
        """What CloudFormation cannot do, or what not every engine does."""
        settle_table(self._aws, self.name, backups=values["PointInTimeRecovery"] == "true")
        return self._register(namespace or "default") if namespace or not values["NamespaceId"] else None


def _has_functions(stack: Mapping[str, Any] | None, values: Mapping[str, str]) -> bool:
    """By default, a new stack has functions, and an existing one stays as it is."""
    return stack is None or values["CodeKey"] != ""
