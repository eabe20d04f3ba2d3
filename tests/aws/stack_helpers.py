"""Stacks on ministack, each with a name of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

from headgate.aws.stack import Stack, StackEvent, StackOptions
from local_servers.dynamodb import Engine

_numbers = count()
QUICK = StackOptions(batch_window_seconds=0)


class Site:
    """A stack that is not there yet, clients for all that is in it, and the events of what was done to it."""

    def __init__(self, engine: Engine, stack: Stack, clients: ExitStack) -> None:
        self.engine = engine
        self.stack = stack
        self.events: list[StackEvent] = []
        self._clients = clients
        self._made: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return self.stack.name

    def client(self, service: str) -> Any:
        if service not in self._made:
            self._made[service] = self.engine.client(service)
            self._clients.callback(self._made[service].close)
        return self._made[service]

    def buckets(self) -> list[str]:
        """Those of this stack, and those with code of it."""
        every = [bucket["Name"] for bucket in self.client("s3").list_buckets()["Buckets"]]
        return [name for name in every if name.startswith(f"{self.name}-") or self.objects(name, f"{self.name}/")]

    def objects(self, bucket: str, prefix: str = "") -> list[str]:
        found = self.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
        return [each["Key"] for each in found]

    def ended(self) -> dict[str, str]:
        """How each resource ended."""
        return {event.resource: event.status for event in self.events}

    def policy(self, output: str) -> dict[str, Any]:
        """A policy as IAM has it, with all that CloudFormation put in."""
        arn = self.stack.outputs()[output]
        iam = self.client("iam")
        version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
        document = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
        return dict(document if isinstance(document, dict) else json.loads(document))

    def usage(self, namespace_id: str, entity_id: str) -> dict[str, dict[str, Any]]:
        """Usage items by their window."""
        found = self.client("dynamodb").query(
            TableName=self.name,
            KeyConditionExpression="PK = :pk AND begins_with(SK, :sk)",
            ExpressionAttributeValues={":pk": {"S": f"{namespace_id}/ENTITY#{entity_id}"}, ":sk": {"S": "#USAGE#"}},
        )
        return {item["window"]["S"]: item for item in found["Items"]}


@contextmanager
def site(engine: Engine) -> Iterator[Site]:
    with (
        ExitStack() as clients,
        Stack(f"stack-{next(_numbers)}", region="us-east-1", endpoint_url=engine.endpoint_url) as stack,
    ):
        yield Site(engine, stack, clients)
