"""The usage that a response reports, found in the body while the application reads it as a stream.

Little is kept in memory: one event of an event stream, or a JSON body, and neither if it is very large.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

Usage: TypeAlias = "Callable[[dict[str, Any]], Mapping[str, Any] | None]"

MOST_BYTES = 8 * 1024 * 1024  # of one document
_PIECE_BYTES = 64 * 1024


def token_usage(document: Mapping[str, Any]) -> dict[str, int]:
    """Tokens by kind, as OpenAI, Anthropic and compatible vendors report them, in a body or an event of a stream."""
    usage = document.get("usage")
    begun = document.get("message")
    if usage is None and isinstance(begun, Mapping):
        # Anthropic's first event. The number of output tokens is not known yet: it says 1.
        usage = {name: count for name, count in _mapping(begun.get("usage")).items() if name != "output_tokens"}
    counts = _mapping(usage or _mapping(document.get("response")).get("usage"))
    found = {
        "tokens": _sum(counts, "total_tokens"),
        "input_tokens": _sum(counts, "prompt_tokens", "input_tokens", "cache_creation_input_tokens"),
        "output_tokens": _sum(counts, "completion_tokens", "output_tokens"),
    }
    return {kind: count for kind, count in found.items() if count is not None}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _sum(counts: Mapping[str, Any], *names: str) -> int | None:
    known = [counts[name] for name in names if type(counts.get(name)) is int and counts[name] >= 0]
    return sum(known) if known else None


def is_events(headers: Mapping[str, str]) -> bool:
    return _kind(headers) == "text/event-stream"


def _kind(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


class UsageReader:
    """Reads a body in pieces of any size. `said()` is the result of `usage`; later values replace earlier ones."""

    def __init__(self, usage: Usage, *, events: bool) -> None:
        self._usage = usage
        self.events = events
        self._kept = bytearray()
        self._too_large = False
        self._said: dict[str, Any] = {}

    @classmethod
    def of(cls, headers: Mapping[str, str], usage: Usage | None) -> UsageReader | None:
        """None if usage is not wanted, or the body is neither JSON nor an event stream."""
        if usage is None or not (is_events(headers) or _kind(headers).endswith("json")):
            return None
        return cls(usage, events=is_events(headers))

    def feed(self, data: bytes) -> None:
        if self.events:
            *lines, data = data.split(b"\n")
            for line in lines:
                self._keep(line)
                self._read()
        self._keep(data)

    def said(self) -> dict[str, Any]:
        self._read()
        if "input_tokens" in self._said and "output_tokens" in self._said:
            self._said.setdefault("tokens", self._said["input_tokens"] + self._said["output_tokens"])
        return self._said

    def _keep(self, data: bytes) -> None:
        self._too_large = self._too_large or len(self._kept) + len(data) > MOST_BYTES
        if self._too_large:
            self._kept.clear()
        else:
            self._kept += data

    def _read(self) -> None:
        """Read a complete document."""
        text, self._kept, self._too_large = self._kept, bytearray(), False
        if self.events and not text.startswith(b"data:"):
            return
        try:
            document = json.loads(text[5:] if self.events else text)
        except ValueError:
            return
        if isinstance(document, dict):
            self._said.update(self._usage(document) or {})


class Inflater:
    """Decodes a body with `Content-Encoding: gzip`, in pieces of bounded size. Other encodings give nothing."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        encoding = headers.get("content-encoding", "identity").strip().lower()
        self._plain = encoding == "identity"
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS) if encoding == "gzip" else None

    def __call__(self, data: bytes) -> Iterator[bytes]:
        if self._plain:
            yield data
        while self._inflate is not None:
            try:
                piece = self._inflate.decompress(data, _PIECE_BYTES)
            except zlib.error:
                self._inflate = None
                return
            yield piece
            data = self._inflate.unconsumed_tail
            if not data and len(piece) < _PIECE_BYTES:
                return
