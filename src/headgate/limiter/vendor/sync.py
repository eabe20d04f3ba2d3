"""Learning from a vendor's response what the vendor has counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.decide import LOWER, Part, Request
from ...core.limit import Limit
from ...core.names import parse_bucket_key
from ...core.units import MAX_PERIOD_MS, MILLI
from ...plan import Plan, Settle
from ..acquire.chain import Chain
from ..acquire.tokens import penalize_chain_plan
from ..engine import Engine
from .headers import Reading, read_headers

# What vendors count, and what limits on it are usually called. A limit may also be called as the vendor does.
NAMES = {"requests": "rpm", "tokens": "tpm", "input_tokens": "itpm", "output_tokens": "otpm"}
_TOO_MUCH = (429, 503, 529)


@dataclass(frozen=True, slots=True)
class VendorSync:
    """What a response said: of each limit, by our name for it; and for how long nothing passes, if it says so."""

    readings: dict[str, Reading]
    penalized_seconds: float | None = None


def learn_plan(engine: Engine, chain: Chain, response: Any, names: Mapping[str, str] | None) -> Plan[VendorSync]:
    headers = read_headers(response, engine.clock.now_ms())
    own = chain.limits()
    readings = _by_limit(headers.readings, own, names or {})
    parts = tuple(
        Part(0, own[name], reading.remaining * MILLI, chain.shape.revisions[0])
        for name, reading in readings.items()
        if reading.remaining is not None
    )
    if parts:
        yield from Settle(Request(LOWER, chain.keys[:1], parts))
    seconds = headers.retry_after_seconds
    if _status(response) not in _TOO_MUCH or not seconds:
        return VendorSync(readings)
    block_ms = min(math.ceil(seconds * MILLI), MAX_PERIOD_MS)
    yield from penalize_chain_plan(chain, block_ms)
    _, stored_id, resource = parse_bucket_key(chain.keys[0])
    fields = {"seconds": block_ms / MILLI, "factor": None}
    engine.observers.tell("penalized", entity_id=stored_id, resource=resource, **fields)
    return VendorSync(readings, block_ms / MILLI)


def _by_limit(
    readings: Mapping[str, Reading], own: Mapping[str, Limit], names: Mapping[str, str]
) -> dict[str, Reading]:
    """The readings under our names for what the vendor counts."""
    found: dict[str, Reading] = {}
    for kind, reading in readings.items():
        for name in (names.get(kind), NAMES.get(kind), kind):
            if name is not None and name in own and not own[name].is_concurrent:
                found.setdefault(name, reading)
                break
    return found


def _status(response: Any) -> int | None:
    """Of a response, or of an error that has one; None if only headers were given."""
    for source in (response, getattr(response, "response", None)):
        for name in ("status_code", "status"):
            found = getattr(source, name, None)
            if isinstance(found, int):
                return found
    return None
