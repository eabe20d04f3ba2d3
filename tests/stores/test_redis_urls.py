"""The URLs of Redis: what they say, and what is told about those that say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import RateLimiter, SyncRateLimiter, ValidationError
from headgate.stores.redis.url import RedisSettings, Wait, read_url

SECRET = "s3cret"

WRONG = [
    # url, what the message names and advises
    ("redis://", "the host is missing, as in redis://localhost:6379"),
    ("redis://:6379", "the host is missing"),
    ("redis+cluster://a,,b", "the host is missing"),
    ("redis+sentinel://a,/service", "the host is missing"),
    ("redis://h:0", "'0' is not a port, like 6379"),
    ("redis://h:65536", "'65536' is not a port, like 6379"),
    ("redis://h:port", "'port' is not a port, like 6379"),
    ("redis://h:-1", "'-1' is not a port, like 6379"),
    ("redis+cluster://a:1,b:x", "'x' is not a port, like 6379"),
    ("redis://[::1", "Invalid IPv6"),
    ("redis://a,b", "one host only; for several there are redis+cluster:// and redis+sentinel://"),
    ("rediss://a:1,b:2", "one host only"),
    ("redis://h/x", "database 'x' is not a number, like 0"),
    ("redis://h/-1", "database '-1' is not a number"),
    ("redis://h/1234567", "database '1234567' is not a number"),
    ("redis://h/0/1", "'/0/1' is not a database number"),
    ("redis+unix:///x.sock?db=one", "db 'one' is not a number"),
    ("redis+unix://h/x.sock", "write redis+unix:///path/to.sock"),
    ("redis+unix://", "write redis+unix:///path/to.sock"),
    ("redis+sentinel://h", "the name of the service is missing, as in redis+sentinel://host:26379/mymaster"),
    ("redis+sentinel://h/service/x", "database 'x' is not a number"),
    ("redis+sentinel://h/service/0/1", "is not a database number"),
    ("redis+cluster://h/0", "a cluster has no databases"),
    (
        "redis://h?nope=1",
        "unknown option 'nope'; redis:// has: cold_start, together, wait_replicas, wait_timeout_ms",
    ),
    ("redis://h?wait_replicas=one", "wait_replicas 'one' is not a number"),
    ("redis://h?wait_replicas=0", "wait_replicas and wait_timeout_ms must be 1 or more"),
    ("redis://h?wait_replicas=1&wait_timeout_ms=0", "wait_replicas and wait_timeout_ms must be 1 or more"),
    ("redis://h?wait_replicas=1&wait_timeout_ms=-1", "wait_timeout_ms '-1' is not a number"),
    ("redis://h?wait_timeout_ms=50", "wait_timeout_ms needs wait_replicas, as in ?wait_replicas=1&wait_timeout_ms="),
    ("redis://h?db=1", "unknown option 'db'"),
    ("redis+cluster://h?db=1", "unknown option 'db'"),
    ("redis://h?ssl_ca_certs=ca.crt", "unknown option 'ssl_ca_certs'"),
    ("redis+cluster://h?sentinel_username=u", "unknown option 'sentinel_username'"),
    ("redis://h?together", "'together'"),
    ("redis://h?together=tenant&together=tenant", "an option is given twice"),
    ("redis://h?together=all", "together='all'; choose from entity, tenant, namespace"),
    ("redis://h?cold_start=2", "cold_start='2'; write the share of its capacity a bucket starts with, from 0 to 1"),
    ("redis://h?cold_start=-0.1", "cold_start='-0.1'"),
    ("redis://h?cold_start=half", "cold_start='half'"),
    ("redis://h?cold_start=", "cold_start=''"),
    ("redis://h?cold_start=nan", "cold_start='nan'"),
    ("redis://h?cold_start=inf", "cold_start='inf'"),
    ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs='maybe'; choose from required, optional, none"),
    ("rediss://h?ssl_check_hostname=1", "ssl_check_hostname='1'; choose from true, false"),
]


@pytest.mark.parametrize(("url", "told"), WRONG)
@pytest.mark.parametrize("limiter", [SyncRateLimiter, RateLimiter])
def test_what_is_wrong_and_what_to_do(limiter: Any, url: str, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        limiter(url)
    assert repr(url) in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(("url", "told"), WRONG)
def test_errors_about_a_url_show_no_password(url: str, told: str) -> None:
    scheme, _, rest = url.partition("://")
    with pytest.raises(ValidationError) as caught:
        read_url(f"{scheme}://user:{SECRET}@{rest}")
    assert repr(f"{scheme}://***@{rest}") in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://user:s3/cret@h",
        "redis://user:1/cret@h:6379/0",
        "redis://user:s3?cret@h",
        "redis://user:s3#cret@h/0",
        "redis://:s3/cret@h",
        "redis+cluster://user:1?cret=1@h",
        "redis+sentinel://user:1/cret@h/service",
        "redis+sentinel://h:x/service?sentinel_password=s3cret",
        "redis+unix://user:s3/cret@/x.sock",
        "redis://h?password=s3cret",
    ],
)
def test_no_part_of_a_password_that_broke_the_url(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read_url(url)
    assert "cret" not in str(caught.value)
    assert "s3" not in str(caught.value)


def test_settings_do_not_show_passwords() -> None:
    url = f"redis+sentinel://user:{SECRET}@h/service?sentinel_password={SECRET}"
    assert SECRET not in repr(read_url(url))
    for limiter in (SyncRateLimiter(url), RateLimiter(url)):
        assert SECRET not in repr(limiter)


def settings(url: str, **expected: Any) -> Any:
    standard: dict[str, Any] = {"topology": "single", "together": "namespace"}
    return pytest.param(RedisSettings(url=url, **(standard | expected)), id=url)


H = ("h", 6379)


@pytest.mark.parametrize(
    "expected",
    [
        settings("redis://h", servers=(H,)),
        settings("redis://h/", servers=(H,)),
        settings("redis://h:1/3", servers=(("h", 1),), db=3),
        settings("redis://[::1]:1", servers=(("::1", 1),)),
        settings("redis://[::1]", servers=(("::1", 6379),)),
        settings("redis://:pw@h", servers=(H,), password="pw"),
        settings("redis://me:p%2Fw%40%3A@h", servers=(H,), username="me", password="p/w@:"),
        settings("redis://me:p@w@h", servers=(H,), username="me", password="p@w"),
        settings("redis://h?together=tenant&cold_start=0.25", servers=(H,), together="tenant", cold_milli=250),
        settings("redis://h?cold_start=0", servers=(H,), cold_milli=0),
        settings("redis://h?wait_replicas=2", servers=(H,), wait=Wait(2, 100)),
        settings("redis://h?wait_replicas=1&wait_timeout_ms=30", servers=(H,), wait=Wait(1, 30)),
        settings("redis+unix:///a/b.sock?db=2", servers=(("/a/b.sock", 0),), db=2),
        settings("redis+unix://me:pw@/a%20b.sock", servers=(("/a b.sock", 0),), username="me", password="pw"),
        settings("rediss://h", servers=(H,), tls={}),
        settings(
            "rediss://h?ssl_ca_certs=/ca.crt&ssl_check_hostname=false&ssl_cert_reqs=none",
            servers=(H,),
            tls={"ssl_ca_certs": "/ca.crt", "ssl_check_hostname": False, "ssl_cert_reqs": "none"},
        ),
        settings(
            "redis+sentinel://me:pw@a,b:1/name/4?sentinel_username=su&sentinel_password=sp",
            topology="sentinel",
            servers=(("a", 26379), ("b", 1)),
            service="name",
            db=4,
            username="me",
            password="pw",
            sentinel_username="su",
            sentinel_password="sp",
        ),
        settings("rediss+sentinel://a/name", topology="sentinel", servers=(("a", 26379),), service="name", tls={}),
        settings("redis+cluster://a,b:1", topology="cluster", servers=(("a", 6379), ("b", 1)), together="entity"),
        settings("rediss+cluster://a?together=namespace", topology="cluster", servers=(("a", 6379),), tls={}),
    ],
)
def test_every_setting_of_a_url_is_read(expected: RedisSettings) -> None:
    assert read_url(expected.url) == expected
