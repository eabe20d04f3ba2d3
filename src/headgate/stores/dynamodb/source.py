"""Where the items of a round come from, and where what is learnt of them goes."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.decide import Part
from .cache import Cache
from .conditional_writes import Write
from .ledger import Ledger
from .rows import NEW
from .writer import News


class Source:
    """The items of one kind, as they were last seen."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def looks_at(self, ledger: Ledger) -> bool:
        if ledger.sure:
            return False
        if ledger.would_look and not ledger.must_look and ledger.row is not None:
            ledger.trusted = not self.cache.may_look(ledger.place)
        return ledger.must_look or (ledger.would_look and not ledger.trusted)

    def overflows(self, ledger: Ledger, parts: Sequence[Part]) -> bool:
        """Whether what is given back here belongs elsewhere, since this item is full."""
        return False

    def learn(self, ledger: Ledger, news: News | None, write: Write | None) -> None:
        if news is None:
            ledger.replay()
            return
        ledger.throttled = news.throttled
        ledger.vanished = news.row is NEW and ledger.row is not None and bool(ledger.row.states)
        if news.invalid is not None:
            ledger.replay()
            ledger.fresh = False
        elif news.row is None:
            if news.error is not None:
                self.cache.forget(ledger.place)
            ledger.learn(None if news.error else ledger.row)
            ledger.fresh = False
        else:
            ledger.learn(news.row, write if news.done else None)
            self.cache.put(ledger.place, news.row, ledger.seen_at_ms)
