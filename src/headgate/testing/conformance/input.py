"""Bad input: a clear error that names the value, and nothing consumed."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from ...core.errors import LimiterClosed, ValidationError
from ...core.limit import Limit
from ...core.text import MAX_DEPTH
from ...core.units import shown
from ...limiter.config.entities import MAX_METADATA_BYTES
from .fixtures import RPM, TPM, Conformance

BAD_AMOUNTS = [
    -1,
    -0.001,
    float("nan"),
    float("inf"),
    float("-inf"),
    10**13,
    0.0001,
    1.0005,
    Decimal("0.0015"),
    Fraction(1, 3),
    "1",
    None,
    True,
    False,
    [1],
]
BAD_IDENTIFIERS = [
    "",
    "a" * 257,
    "a b",
    " a",
    "a\n",
    "a\x00",
    "a#b",
    "#",
    "-a",
    ".a",
    "ä",
    "a\u200b",
    None,
    7,
    b"a",
    ["a"],
]


class InputConformance(Conformance):
    @pytest.mark.parametrize("amount", BAD_AMOUNTS, ids=repr)
    def test_a_bad_amount_is_refused_by_name_and_takes_nothing(self, limiter: Any, amount: Any) -> None:
        for call in (limiter.try_acquire, limiter.time_until_available):
            with pytest.raises(ValidationError) as caught:
                call("e", "r", {"rpm": 1, "tpm": amount}, [RPM, TPM])
            assert shown(amount) in str(caught.value)
            assert "tpm" in str(caught.value)
        with pytest.raises(ValidationError), limiter.acquire("e", "r", {"tpm": amount}, [RPM, TPM]):
            pass
        assert limiter.available("e", "r", [RPM, TPM]) == {"rpm": 60, "tpm": 1500}

    def test_an_amount_that_equals_a_good_one_is_not_good_for_that(self, limiter: Any) -> None:
        for good, bad in ((1, True), (0, False)):
            for _ in range(2):
                assert limiter.try_acquire("e", "r", {"rpm": good}, [RPM])
                for call in (limiter.try_acquire, limiter.time_until_available):
                    with pytest.raises(ValidationError, match=f"amount of 'rpm' must be a number, not {bad!r}"):
                        call("e", "r", {"rpm": bad}, [RPM])
                lease = limiter.try_acquire("e", "r", {"rpm": good}, [RPM]).lease
                with pytest.raises(ValidationError, match=f"not {bad!r}"):
                    lease.consume(rpm=bad)
        assert limiter.try_acquire("e", "r", {"rpm": 1.0}, [RPM])
        assert limiter.try_acquire("e", "r", {"rpm": Decimal(1)}, [RPM])
        assert limiter.available("e", "r", [RPM]) == {"rpm": 54}

    @pytest.mark.parametrize("consume", [{}, None, "rpm", ["rpm"], 5], ids=repr)
    def test_consume_that_names_nothing_is_refused(self, limiter: Any, consume: Any) -> None:
        with pytest.raises(ValidationError, match="consume"):
            limiter.try_acquire("e", "r", consume, [RPM])

    def test_an_unknown_limit_name_is_refused_and_the_known_ones_are_named(self, limiter: Any) -> None:
        for call in (limiter.try_acquire, limiter.adjust, limiter.time_until_available):
            with pytest.raises(ValidationError, match=r"'rps'.*rpm, tpm"):
                call("e", "r", {"rpm": 1, "rps": 1}, [RPM, TPM])
        assert limiter.available("e", "r", [RPM]) == {"rpm": 60}

    def test_without_limits_a_call_raises_and_says_how_to_set_them(self, limiter: Any) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: limiter.try_acquire("e", "r", {"rpm": 1}),
            lambda: limiter.try_acquire("e", "r", {"rpm": 1}, []),
            lambda: limiter.available("e", "r"),
            lambda: limiter.adjust("e", "r", {"rpm": 1}),
            lambda: limiter.penalize("e", "r", seconds=1),
        ]
        for call in calls:
            with pytest.raises(ValidationError, match=r"no limits.*'e'.*'r'.*set_limits"):
                call()

    @pytest.mark.parametrize("identifier", BAD_IDENTIFIERS, ids=repr)
    def test_a_bad_identifier_is_refused_by_every_method(self, limiter: Any, identifier: Any) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: limiter.try_acquire(identifier, "r", {"rpm": 1}, [RPM]),
            lambda: limiter.try_acquire("e", identifier, {"rpm": 1}, [RPM]),
            lambda: limiter.available(identifier, "r", [RPM]),
            lambda: limiter.create_entity(identifier),
            lambda: limiter.get_entity(identifier),
            lambda: limiter.delete_entity(identifier),
            lambda: limiter.get_children(identifier),
            lambda: limiter.set_limits(identifier, [RPM]),
            lambda: limiter.set_resource_defaults(identifier, [RPM]),
            lambda: limiter.reset(identifier, "r"),
            lambda: limiter.get_buckets(identifier),
        ]
        for call in calls:
            with pytest.raises(ValidationError, match=r"entity_id|resource|parent_id"):
                call()

    def test_every_allowed_character_of_identifiers_works(self, limiter: Any) -> None:
        for entity_id in ("a" * 256, "user:42", "me@example.com", "A.b_c-d", "0"):
            assert limiter.try_acquire(entity_id, "POST:/v1/chat", {"rpm": 1}, [RPM])
        with pytest.raises(ValidationError, match="a/b"):
            limiter.try_acquire("a/b", "r", {"rpm": 1}, [RPM])

    def test_bad_lists_of_limits_are_refused(self, limiter: Any) -> None:
        for limits in ([RPM, Limit.per_day("rpm", 1)], ["10/minute"], [None], RPM, "10/minute"):
            with pytest.raises(ValidationError):
                limiter.try_acquire("e", "r", {"rpm": 1}, limits)
            with pytest.raises(ValidationError):
                limiter.set_limits("e", limits)
        with pytest.raises(ValidationError, match="twice"):
            limiter.set_system_defaults([RPM, Limit.per_day("rpm", 1)])

    def test_bad_settings_of_an_entity_are_refused_by_name(self, limiter: Any) -> None:
        settings: list[dict[str, Any]] = [
            {"name": 5},
            {"name": "n" * 257},
            {"cascade": 1},
            {"metadata": []},
            {"metadata": {"x": object()}},
        ]
        for bad in settings:
            with pytest.raises(ValidationError, match=next(iter(bad))):
                limiter.create_entity("e", **bad)
        with pytest.raises(ValidationError, match="metadata"):
            limiter.create_entity("e", metadata={"x": float("nan")})

    def test_text_that_cannot_be_encoded_is_refused_at_every_depth(self, limiter: Any) -> None:
        """JSON holds half of a surrogate pair, and no answer could show it."""
        limiter.create_entity("e")
        before = limiter.get_entity("e"), limiter.get_audit_events()
        half = "\udc80"
        for metadata in ({half: 1}, {"a": half}, {"a": [{"b": [half]}]}, {"a": {"b": {f"x{half}x": None}}}):
            for change in (limiter.create_entity, limiter.update_entity):
                with pytest.raises(ValidationError, match=r"metadata has the lone surrogate '\\udc80'"):
                    change("e", metadata=metadata)
        for what in ("name", "actor"):
            with pytest.raises(ValidationError, match=what):
                limiter.update_entity("e", **{"name": "new", what: f"Acme{half}"})
        assert (limiter.get_entity("e"), limiter.get_audit_events()) == before

    def test_metadata_has_a_largest_size_and_depth(self, limiter: Any) -> None:
        deep: Any = "x"
        for _ in range(MAX_DEPTH - 1):
            deep = [deep]
        limiter.create_entity("deep", metadata={"a": deep})
        assert limiter.get_entity("deep").metadata == {"a": deep}
        endless: Any = []
        for _ in range(100_000):
            endless = [endless]
        for metadata in ({"a": [deep]}, {"a": endless}):
            with pytest.raises(ValidationError, match="nested more than 32 deep"):
                limiter.create_entity("deeper", metadata=metadata)
        fits = {"a": "x" * (MAX_METADATA_BYTES - len('{"a": ""}'))}
        limiter.create_entity("large", metadata=fits)
        assert limiter.get_entity("large").metadata == fits
        limiter.update_entity("large", metadata={"b": fits["a"]})
        with pytest.raises(ValidationError, match=r"65,537 bytes as JSON, and 65,536 are allowed"):
            limiter.update_entity("large", metadata={"a": fits["a"] + "x"})

    def test_bad_options_of_a_call_are_refused_and_take_nothing(self, limiter: Any) -> None:
        with pytest.raises(ValidationError, match=r"on_error.*'ignore'"):
            limiter.acquire("e", "r", {"rpm": 1}, [RPM], on_error="ignore")
        with pytest.raises(ValidationError, match=r"on_unavailable.*'panic'"):
            limiter.try_acquire("e", "r", {"rpm": 1}, [RPM], on_unavailable="panic")
        with pytest.raises(ValidationError, match="on_unavailable"):
            limiter.set_system_defaults([RPM], on_unavailable="panic")
        for bad in ({}, {"seconds": -1}, {"factor": 2}, {"factor": -0.1}, {"factor": 0.3333}):
            with pytest.raises(ValidationError):
                limiter.penalize("e", "r", limits=[RPM], **bad)
        assert limiter.available("e", "r", [RPM]) == {"rpm": 60}

    def test_bad_settings_of_a_limiter_are_refused_by_name(self, open_limiter: Callable[..., Any]) -> None:
        for bad in (
            {"namespace": "a/b"},
            {"namespace": ""},
            {"on_unavailable": "panic"},
            {"config_cache_ttl": -1},
            {"config_cache_ttl": "60"},
            {"store_timeout": 0},
            {"store_timeout": float("inf")},
            {"clock": 5},
            {"hash_entity_ids": 1},
            {"hash_entity_ids": b""},
        ):
            with pytest.raises(ValidationError, match=next(iter(bad))):
                open_limiter(**bad)

    def test_a_closed_limiter_refuses_every_call_and_its_leases_too(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter()
        limiter.set_system_defaults([RPM])
        assert limiter.try_acquire("e", "r", {"rpm": 1})
        lease = limiter.try_acquire("e", "r", {"rpm": 1}).lease
        limiter.close()
        limiter.close()
        for call in (
            lambda: limiter.try_acquire("e", "r", {"rpm": 1}),
            lambda: limiter.acquire("e", "r", {"rpm": 1}).__enter__(),
            lambda: limiter.available("e", "r"),
            lambda: limiter.get_entity("e"),
            lambda: lease.consume(rpm=1),
            limiter.ping,
        ):
            with pytest.raises(LimiterClosed, match="closed"):
                call()
        assert open_limiter().available("e", "r") == {"rpm": 58}

    def test_setup_can_be_repeated_and_ping_answers(self, open_limiter: Callable[..., Any]) -> None:
        limiter = open_limiter()
        limiter.setup()
        limiter.setup()
        limiter.ping()
