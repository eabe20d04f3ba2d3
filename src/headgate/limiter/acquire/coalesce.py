"""Coalescing: while one call to the store is in progress, requests queue up, and the next call takes them all.

A lone request finds no call in progress and is sent at once: there is no timer. Requests are sent in the order in which
they came, so the answers are those of one call each.

Cancellation. A take that is cancelled has no effect: it is withdrawn if it was not sent yet, otherwise it is given back
as soon as its answer is known. A force that is cancelled is sent and lands all the same, before its caller hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.decide import Answer, Mode, Request
from ...core.errors import UNANSWERED, HeadgateError, PartlyAnswered, RateLimiterUnavailable, Unanswered

MAX_BATCH = 512
WITHDRAWN = (Mode.TAKE, Mode.PEEK)  # if its caller is gone before it is sent; all others land nevertheless
INTERRUPTED = "the call was interrupted in the thread that made it"


def settle_each(
    settle: Callable[[Sequence[Request]], list[Answer]], batch: Sequence[Request]
) -> list[Answer | Unanswered]:
    """In as few calls as there can be."""
    results: list[Answer | HeadgateError] = []
    for start in range(0, len(batch), MAX_BATCH):
        some = batch[start : start + MAX_BATCH]
        try:
            results += settle(some)
        except PartlyAnswered as partly:
            results += partly.results
        except RateLimiterUnavailable as unavailable:
            results += [unavailable] * len(some)
    return [_checked(result) for result in results]


def _checked(result: Answer | HeadgateError) -> Answer | Unanswered:
    """What the store could not answer is its caller's; any other error is the whole call's."""
    if isinstance(result, (Answer, *UNANSWERED)):
        return result
    raise result
