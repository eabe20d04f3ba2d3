"""What was used, read from a body that goes by in whatever pieces."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.http.clients import token_usage
from headgate.http.clients.usage import MOST_BYTES, Inflater, UsageReader

EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
JSON = {"content-type": "application/json"}


def reader(headers: dict[str, str]) -> UsageReader:
    found = UsageReader.of(headers, token_usage)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"usage": {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21}}, (21, 9, 12)),
        ({"usage": {"prompt_tokens": 8, "total_tokens": 8}}, (8, 8, None)),
        ({"usage": {"input_tokens": 9, "output_tokens": 12, "total_tokens": 21}}, (21, 9, 12)),
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 3, "output_tokens": 4}}}, (None, 3, 4)),
        ({"usage": {"input_tokens": 9, "cache_creation_input_tokens": 5, "output_tokens": 2}}, (None, 14, 2)),
        ({"type": "message_start", "message": {"usage": {"input_tokens": 25, "output_tokens": 1}}}, (None, 25, None)),
        ({"type": "message_delta", "usage": {"output_tokens": 15}}, (None, None, 15)),
        ({"usage": None}, (None, None, None)),
        ({"usage": [1], "message": "hi", "response": 3}, (None, None, None)),
        ({"usage": {"total_tokens": -1, "input_tokens": True, "output_tokens": "3"}}, (None, None, None)),
        ({}, (None, None, None)),
    ],
)
def test_token_usage_is_read_from_every_vendors_response(
    document: dict[str, Any], found: tuple[int | None, ...]
) -> None:
    kinds = ("tokens", "input_tokens", "output_tokens")
    assert token_usage(document) == {kind: count for kind, count in zip(kinds, found) if count is not None}


@given(st.data())
def test_pieces_make_no_difference(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 9999), min_size=1, max_size=5))
    documents = [{"text": data.draw(st.text()), "usage": {"total_tokens": count}} for count in counts]
    events = data.draw(st.booleans())
    if events:
        newline = data.draw(st.sampled_from([b"\n", b"\r\n"]))
        lines = [b"event: x" + newline + b"data: " + json.dumps(one).encode() + newline * 2 for one in documents]
        body = b": a comment\n" + b"".join(lines) + b"data: [DONE]\n\n"
    else:
        documents, counts = documents[:1], counts[:1]
        body = json.dumps(documents[0]).encode()
    encoded = data.draw(st.booleans())
    headers = {**(EVENTS if events else JSON), **({"content-encoding": "gzip"} if encoded else {})}
    body = gzip.compress(body) if encoded else body
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=10)))
    found, inflate = reader(headers), Inflater(headers)
    for start, end in zip([0, *cuts], [*cuts, len(body)]):
        for piece in inflate(body[start:end]):
            found.feed(piece)
    assert found.said() == {"tokens": counts[-1]}


def test_input_and_output_make_the_whole_only_if_both_are_known() -> None:
    events = reader(EVENTS)
    events.feed(b'data: {"message": {"usage": {"input_tokens": 25, "output_tokens": 1}}}\n\n')
    assert events.said() == {"input_tokens": 25}
    events.feed(b'data: {"usage": {"output_tokens": 15}}\n\n')
    assert events.said() == {"input_tokens": 25, "output_tokens": 15, "tokens": 40}


def test_what_is_too_large_is_not_kept() -> None:
    usage = b'{"usage": {"total_tokens": 3}}'
    events, body, bomb = reader(EVENTS), reader(JSON), reader(JSON)
    piece = b"x" * (1 << 20)
    small = gzip.compress(b"x" * (64 << 20))
    tracemalloc.start()
    for _ in range(64):
        events.feed(piece)
        body.feed(piece)
    for inflated in Inflater({"content-encoding": "gzip"})(small):
        bomb.feed(inflated)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * MOST_BYTES
    body.feed(usage)
    assert body.said() == bomb.said() == {}
    events.feed(b"\ndata: " + usage + b"\n")  # the next event is another matter
    assert events.said() == {"tokens": 3}


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, gzip"])
def test_what_cannot_be_decoded_says_nothing(encoding: str) -> None:
    inflate = Inflater({"content-encoding": encoding})
    assert b"".join([*inflate(b"no such encoding"), *inflate(b"of a body")]) == b""


def test_other_bodies_are_not_looked_at() -> None:
    assert UsageReader.of({"content-type": "image/png"}, token_usage) is None
    assert UsageReader.of({}, token_usage) is None
    assert UsageReader.of(JSON, None) is None
