"""Who runs against whom on a DynamoDB engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from . import dynamodb_peers as peers
from .dynamodb_scenes import BARE, CASCADE, ENTITIES, HOT, LONE, OURS, PEER, SPREAD
from .measure import Contender, Turn, coroutines, tasks

Tables = dict[str, list[Contender]]

LIMITERS = ((OURS, peers.ours, "token bucket"), (PEER, peers.zae, "token bucket"))
ALL = (*LIMITERS, (BARE, peers.update_item, "the least a limiter could do"))


def lone(at: peers.At, loop: peers.Loop) -> Tables:
    return {LONE: _contenders(at, loop, LONE, ALL), CASCADE: _contenders(at, loop, CASCADE, LIMITERS)}


def crowds(at: peers.At, loop: peers.Loop) -> Tables:
    return {scene: _contenders(at, loop, scene, ALL) for scene in (HOT, SPREAD)}


def _contenders(
    at: peers.At, loop: peers.Loop, scene: str, rows: Sequence[tuple[str, peers.Open, str]]
) -> list[Contender]:
    def seat(open_at: peers.Open) -> Any:
        @contextmanager
        def opened(_: Path) -> Iterator[Turn]:
            with open_at(at, loop) as take:
                yield turn_of(take, loop, scene)

        return opened

    return [Contender(name, seat(open_at), note=note) for name, open_at, note in rows]


def turn_of(take: peers.Take, loop: peers.Loop, scene: str) -> Turn:
    hits = [partial(take, entity, peers.API) for entity in ENTITIES[scene]]
    return tasks(loop, hits) if len(hits) > 1 else coroutines(loop, hits[0])
