"""For requests: `session.mount("https://", HeadgateAdapter(limiter, {"api.openai.com": "openai#gpt-4o"}))`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from ...limiter import SyncRateLimiter
from ...plan import run
from .gate import Dimensions, Gate, GateOptions, HttpExchange
from .steps import perform

if TYPE_CHECKING:
    from typing_extensions import Unpack


class HeadgateAdapter(BaseAdapter):
    __doc__ = f"""Waits for the limits of the dimension before each request, then sends it through `adapter`.

{cleandoc(GateOptions.__doc__ or "")}"""

    def __init__(
        self,
        limiter: SyncRateLimiter,
        dimension: Dimensions,
        *,
        adapter: BaseAdapter | None = None,
        **options: Unpack[GateOptions],
    ) -> None:
        super().__init__()
        self._gate = Gate(limiter, dimension, _unsent, SyncRateLimiter, **options)
        self._adapter = HTTPAdapter() if adapter is None else adapter

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        send = partial(self._adapter.send, request, *args, **kwargs)
        response, exchange = run(self._gate.send_plan(request, send, requests.Response.close), perform)
        if exchange is not None:
            _watch(response, exchange)
        return response  # type: ignore[no-any-return]

    def close(self) -> None:
        self._adapter.close()


def _unsent(error: BaseException) -> bool:
    """requests raises the same error for failed and broken connections. The error of urllib3 in it tells them apart."""
    if isinstance(error, (requests.exceptions.ConnectTimeout, requests.exceptions.ProxyError)):
        return True
    reason = getattr(error.args[0], "reason", None) if error.args else None
    return isinstance(reason, (NewConnectionError, ConnectTimeoutError))


def _watch(response: requests.Response, exchange: HttpExchange) -> None:
    """requests reads a body through `raw.stream`, decoded, and closes only responses that were not read to the end."""
    stream, close = response.raw.stream, response.close

    def watched(*args: Any, **kwargs: Any) -> Iterator[bytes]:
        try:
            for chunk in stream(*args, **kwargs):
                exchange.feed(chunk)
                yield chunk
        except GeneratorExit:
            raise  # perhaps by the garbage collector, which must not wait for a store
        except BaseException:
            end()
            raise
        end()

    def closed() -> None:
        try:
            close()
        finally:
            end()

    def end() -> None:
        run(exchange.end_plan(), perform)

    response.raw.stream = watched  # type: ignore[method-assign]
    response.close = closed  # type: ignore[method-assign]
