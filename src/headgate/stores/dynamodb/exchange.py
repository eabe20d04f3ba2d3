"""The one thing the transports do: send operations to DynamoDB, all at once, and bring what became of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ...plan import Call
from ..server import Lost as Lost
from ..server import MoreTime as MoreTime

Attributes: TypeAlias = "Mapping[str, Any]"  # as DynamoDB has them: {"N": "1"}, {"S": "a"}
Item: TypeAlias = "Mapping[str, Attributes]"


class Send(NamedTuple):
    """One operation of DynamoDB's API with its parameters.

    `repeatable`: done twice it is the same as done once, so that it may be sent again when the reply was lost.
    """

    operation: str
    parameters: Mapping[str, Any]
    repeatable: bool = False


class Failed(NamedTuple):
    """An error as a reply: DynamoDB did not do it.

    `item`: what stood against a condition, if asked for. `reasons`: of a cancelled transaction, one for each item.
    """

    code: str  # without "Exception"
    message: str
    item: Item | None = None
    reasons: Sequence[Failed] = ()


MISCONFIGURED = "Misconfigured"  # instead of a code of DynamoDB's: it was not even asked


Reply: TypeAlias = "Mapping[str, Any] | Failed | Lost"


@dataclass(frozen=True, slots=True)
class Exchange(Call[list[Reply]]):
    """All at once; one reply to each."""

    sends: Sequence[Send]
