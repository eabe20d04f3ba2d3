"""The options of a stack. The template's parameters and the command's options are made from this one list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ...core.errors import ValidationError

_LOG_DAYS = (1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653)


@dataclass(frozen=True)
class Parameter:
    """A parameter of the template. `kind` is bool, int or str; an empty string means none."""

    name: str
    kind: type
    default: bool | int | str
    about: str
    least: int | None = None
    most: int | None = None
    allowed: tuple[int, ...] = ()
    pattern: str = ""
    rule: str = ""  # the pattern in words

    def check(self, option: str, value: Any) -> None:
        if not _is(value, self.kind):
            raise ValidationError(f"{option} must be of type {self.kind.__name__}, not {value!r}")
        if self.allowed and value not in self.allowed:
            raise ValidationError(f"{option} {value} is not allowed: it is one of {', '.join(map(str, self.allowed))}")
        if isinstance(self.least, int) and isinstance(self.most, int) and not self.least <= value <= self.most:
            raise ValidationError(f"{option} {value} is not allowed: it is from {self.least} to {self.most}")
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise ValidationError(f"{option} {value!r} is not allowed: {self.rule}")

    def spelled(self, value: Any) -> str:
        """As CloudFormation takes it: text only."""
        return str(value).lower() if isinstance(value, bool) else str(value)

    def read(self, text: str) -> bool | int | str:
        if self.kind is bool:
            return text == "true"
        return int(text) if self.kind is int else text

    def definition(self) -> dict[str, Any]:
        """Its definition in the template."""
        number = self.kind is int
        made: dict[str, Any] = {
            "Type": "Number" if number else "String",
            "Default": self.default if number else self.spelled(self.default),
            "Description": self.about,
        }
        if self.kind is bool:
            made["AllowedValues"] = ["true", "false"]
        if self.allowed:
            made["AllowedValues"] = list(self.allowed)
        if self.least is not None:
            made |= {"MinValue": self.least, "MaxValue": self.most}
        if self.pattern:
            made |= {"AllowedPattern": f"^{self.pattern}$", "ConstraintDescription": self.rule}
        return made


def _is(value: Any, kind: type) -> bool:
    """isinstance accepts True as an int, which is wrong here."""
    return type(value) is kind


def _option(*args: Any, **kwargs: Any) -> Any:
    return field(default=None, metadata={"parameter": Parameter(*args, **kwargs)})


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """None keeps the setting of an existing stack, and is the default in a new one."""

    point_in_time_recovery: bool | None = _option(
        "PointInTimeRecovery", bool, True, "Keep continuous backups of the table for 35 days."
    )
    deletion_protection: bool | None = _option(
        "DeletionProtection", bool, False, "Refuse to delete the table, and so the stack, while this is on."
    )
    kms_key_arn: str | None = _option(
        "KmsKeyArn",
        str,
        "",
        "Encrypt the table with your own key. Without one, DynamoDB uses its own, at no cost.",
        pattern=r"(|arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+)",
        rule="it is the ARN of a key, like arn:aws:kms:eu-west-1:123456789012:key/...",
    )
    namespace_id: str | None = _option(
        "NamespaceId",
        str,
        "",
        "Restrict the three policies to the namespace with this id. Without one, they are for the whole table.",
        pattern=r"(|[A-Za-z0-9_-]{11})",
        rule="it is the 11 characters that the table's registry has for the namespace, not its name",
    )
    max_shards: int | None = _option(
        "MaxShards",
        int,
        64,
        "The most items that the aggregator splits a hot bucket over.",
        allowed=(1, 2, 4, 8, 16, 32, 64),
    )
    usage_retention_days: int | None = _option(
        "UsageRetentionDays", int, 90, "How long usage by the hour is kept.", least=1, most=3660
    )
    archive: bool | None = _option(
        "Archive", bool, True, "Archive audit events that expire in the table to an S3 bucket."
    )
    archive_glacier_days: int | None = _option(
        "ArchiveGlacierDays", int, 90, "When archived events move to Glacier, in days.", least=1, most=3650
    )
    archive_expire_days: int | None = _option(
        "ArchiveExpireDays", int, 2557, "When archived events are deleted, in days.", least=2, most=36500
    )
    memory_mb: int | None = _option("MemoryMB", int, 256, "Memory of each function.", least=128, most=10_240)
    batch_size: int | None = _option(
        "BatchSize", int, 200, "The most stream records that the aggregator gets at once.", least=1, most=10_000
    )
    batch_window_seconds: int | None = _option(
        "BatchWindowSeconds",
        int,
        2,
        "How long the aggregator waits for a batch to fill. Longer costs less; shorter counts sooner.",
        least=0,
        most=300,
    )
    parallelization: int | None = _option(
        "Parallelization", int, 2, "How many batches of one stream shard run at once.", least=1, most=10
    )
    retries: int | None = _option(
        "Retries",
        int,
        -1,
        "How often a failing batch is retried before it goes to the queue; -1: until its records are 23 hours old.",
        least=-1,
        most=10_000,
    )
    reconcile_minutes: int | None = _option(
        "ReconcileMinutes", int, 5, "How often the reconciler runs, in minutes.", least=2, most=1440
    )
    log_retention_days: int | None = _option(
        "LogRetentionDays", int, 30, "How long the logs of the functions are kept.", allowed=_LOG_DAYS
    )
    alarms: bool | None = _option("Alarms", bool, True, "Create the alarms.")
    alarm_topic_arn: str | None = _option(
        "AlarmTopicArn",
        str,
        "",
        "Notify this SNS topic when an alarm goes off and when it ends.",
        pattern=r"(|arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:[A-Za-z0-9_-]+)",
        rule="it is the ARN of a topic, like arn:aws:sns:eu-west-1:123456789012:pager",
    )
    alarm_email: str | None = _option(
        "AlarmEmail",
        str,
        "",
        "Create an SNS topic that sends the alarms to this address, which must confirm.",
        pattern=r"(|[^\s@]+@[^\s@]+)",
        rule="it is an e-mail address",
    )
    permissions_boundary_arn: str | None = _option(
        "PermissionsBoundaryArn",
        str,
        "",
        "The permissions boundary of the functions' roles, if your organisation requires one.",
        pattern=r"(|arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/.+)",
        rule="it is the ARN of a policy, like arn:aws:iam::123456789012:policy/boundary",
    )

    def __post_init__(self) -> None:
        for option, parameter in parameters():
            value = getattr(self, option)
            if value is not None:
                parameter.check(option, value)
        if self.alarm_topic_arn and self.alarm_email:
            raise ValidationError("pass alarm_topic_arn or alarm_email, not both")

    def given(self) -> dict[str, str]:
        """The parameters of the template that were chosen, by name."""
        chosen = ((parameter, getattr(self, option)) for option, parameter in parameters())
        return {parameter.name: parameter.spelled(value) for parameter, value in chosen if value is not None}


def parameters() -> Iterator[tuple[str, Parameter]]:
    """Each option with its parameter."""
    for each in fields(StackOptions):
        yield each.name, each.metadata["parameter"]


def check_together(values: Mapping[str, str]) -> None:
    """Check parameters that depend on each other. `values` are those the stack will have."""
    glacier, expire = int(values["ArchiveGlacierDays"]), int(values["ArchiveExpireDays"])
    if glacier >= expire:
        raise ValidationError(
            f"archive_glacier_days {glacier} is not allowed: it must come before archive_expire_days, which is {expire}"
        )
    if values["AlarmTopicArn"] and values["AlarmEmail"]:
        raise ValidationError(
            f"alarms would go to both the topic {values['AlarmTopicArn']!r} and {values['AlarmEmail']!r}: "
            'set one of alarm_topic_arn and alarm_email to ""'
        )
