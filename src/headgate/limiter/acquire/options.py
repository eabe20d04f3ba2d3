"""The options of an acquire, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, get_args

from ...core.errors import ValidationError
from ...core.limit import DEFAULT_TTL_SECONDS
from ...core.units import seconds_to_ms, wait_to_ms

C = TypeVar("C")
OnUnavailable: TypeAlias = Literal["block", "allow", "local"]
OnError: TypeAlias = Literal["rollback", "keep"]


def _check_choice(value: Any, what: str, choices: tuple[C, ...]) -> C:
    for choice in choices:
        if value == choice:
            return choice
    *others, last = map(repr, choices)
    raise ValidationError(f"{what} must be {', '.join(others)} or {last}, not {value!r}")


def check_on_unavailable(value: Any) -> OnUnavailable:
    return _check_choice(value, "on_unavailable", get_args(OnUnavailable))


def check_on_error(value: Any) -> OnError:
    return _check_choice(value, "on_error", get_args(OnError))


class Options:
    __slots__ = ("max_wait_ms", "on_lost", "on_unavailable", "record_lease", "restore_on_expiry", "ttl_ms")

    def __init__(
        self,
        max_wait: float = 0,
        on_unavailable: str | None = None,
        record_lease: bool = False,
        restore_on_expiry: bool = False,
        lease_ttl: float = DEFAULT_TTL_SECONDS,
        on_lost: Callable[[Any], object] | None = None,
    ) -> None:
        self.max_wait_ms = wait_to_ms(max_wait, "max_wait")
        self.on_unavailable = None if on_unavailable is None else check_on_unavailable(on_unavailable)
        self.record_lease = bool(record_lease)
        self.restore_on_expiry = bool(restore_on_expiry)
        self.ttl_ms = seconds_to_ms(lease_ttl, "lease_ttl")
        self.on_lost = on_lost
        if restore_on_expiry and not record_lease:
            raise ValidationError("restore_on_expiry needs record_lease=True: only what is recorded can be restored")
        if on_lost is not None and not callable(on_lost):
            raise ValidationError(f"on_lost must be a function that takes the lease, not {on_lost!r}")


PLAIN = Options()
