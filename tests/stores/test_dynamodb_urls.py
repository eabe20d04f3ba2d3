"""The URLs of DynamoDB: what they say, and what is told about those that say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import RateLimiter, SyncRateLimiter, ValidationError
from headgate.stores.dynamodb.url import DynamoDBSettings, read_url

SECRET = "s3cret"
TABLE = "write dynamodb://table?region=eu-west-1; a table's name is 3 to 255 of A-Z a-z 0-9 _ . -"

WRONG = [
    # url, what the message names and advises
    ("dynamodb://", TABLE),
    ("dynamodb://ab", TABLE),
    ("dynamodb://" + "a" * 256, TABLE),
    ("dynamodb://tab le", TABLE),
    ("dynamodb://tabl%65", TABLE),
    ("dynamodb://table/more", TABLE),
    ("dynamodb://table:8000", TABLE),
    ("dynamodb:///table", TABLE),
    ("dynamodb://table#part", TABLE),
    ("dynamodb://table?nope=***", "there is no option 'nope', only region, endpoint_url, profile, shards"),
    ("dynamodb://table?region=eu-west-1&Profile=***", "there is no option 'Profile'"),
    ("dynamodb://table?region", "after the ? come options, like region=eu-west-1"),
    ("dynamodb://table?region=", "the option 'region' is empty"),
    ("dynamodb://table?profile=", "the option 'profile' is empty"),
    ("dynamodb://table?region=eu-west-1&region=eu-west-2", "an option is given twice"),
    ("dynamodb://table?region=Frankfurt", "region 'Frankfurt' is not allowed: write it like eu-west-1"),
    ("dynamodb://table?region=eu_west_1", "region 'eu_west_1' is not allowed"),
    ("dynamodb://table?region=eu-west-1/x", "region 'eu-west-1/x' is not allowed"),
    ("dynamodb://table?endpoint_url=127.0.0.1:8000", "'127.0.0.1:8000' must be like http://127.0.0.1:8000"),
    ("dynamodb://table?endpoint_url=ftp://h", "endpoint_url 'ftp://h' must be like"),
    ("dynamodb://table?endpoint_url=http://", "endpoint_url 'http://' must be like"),
    ("dynamodb://table?endpoint_url=http://h:port", "endpoint_url 'http://h:port' must be like"),
    ("dynamodb://table?endpoint_url=http://h:1:2", "endpoint_url 'http://h:1:2' must be like"),
    ("dynamodb://table?shards=0", "shards '0' must be a power of two from 1 to 64"),
    ("dynamodb://table?shards=3", "shards '3' must be a power of two"),
    ("dynamodb://table?shards=128", "shards '128' must be a power of two"),
    ("dynamodb://table?shards=-1", "shards '-1' must be a power of two"),
    ("dynamodb://table?shards=04", "shards '04' must be a power of two"),
    ("dynamodb://table?shards=many", "shards 'many' must be a power of two"),
]


@pytest.mark.parametrize(("url", "told"), WRONG)
@pytest.mark.parametrize("limiter", [SyncRateLimiter, RateLimiter])
def test_what_is_wrong_and_what_to_do(limiter: Any, url: str, told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        limiter(url)
    assert repr(url) in str(caught.value)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"dynamodb://key:{SECRET}@table",
        f"dynamodb://:{SECRET}@table?region=eu-west-1",
        f"dynamodb://{SECRET}@table",
        "dynamodb://key:s3/cret@table",
        "dynamodb://key:s3?cret@table",
        "dynamodb://key:s3#cret@table",
        f"dynamodb://table?region=eu-west-1&aws_secret_access_key={SECRET}",
        f"dynamodb://table?secret={SECRET}",
        f"dynamodb://table?aws_session_token={SECRET}",
        f"dynamodb://table?password={SECRET}",
        f"dynamodb://table?endpoint_url=http://key:{SECRET}@h:8000",
        f"dynamodb://table?nope=1&endpoint_url=http://key:{SECRET}@h:8000",
        f"dynamodb://table?nope=1&endpoint_url=http%3A%2F%2Fkey%3A{SECRET}%40h%3A8000",
        f"dynamodb://table?endpoint_url=ftp%3A%2F%2Fkey%3A{SECRET}%40h%3A8000",
    ],
)
@pytest.mark.parametrize("limiter", [SyncRateLimiter, RateLimiter])
def test_credentials_do_not_belong_there_and_are_not_shown(limiter: Any, url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        limiter(url)
    for told in (str(caught.value), repr(caught.value)):
        assert "s3" not in told
        assert "cret" not in told.replace("secret", "")


def test_it_says_where_credentials_come_from() -> None:
    with pytest.raises(
        ValidationError, match=r"credentials come from the AWS configuration \(profile=, the environment"
    ):
        read_url(f"dynamodb://key:{SECRET}@table")


EVERYTHING = (
    "dynamodb://My_table.a-1?region=us-gov-west-1&endpoint_url=https%3A%2F%2Fh%3A8000%2Fp&profile=me%20too&shards=1"
)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("dynamodb://tab", DynamoDBSettings("tab")),
        ("dynamodb://table/", DynamoDBSettings("table")),
        ("dynamodb://table?", DynamoDBSettings("table")),
        ("dynamodb://" + "a" * 255, DynamoDBSettings("a" * 255)),
        ("dynamodb://table?region=eu-west-1", DynamoDBSettings("table", "eu-west-1")),
        ("dynamodb://table?region=cn-northwest-1", DynamoDBSettings("table", "cn-northwest-1")),
        ("dynamodb://table?region=us-iso-east-1", DynamoDBSettings("table", "us-iso-east-1")),
        (
            "dynamodb://table?endpoint_url=http://127.0.0.1:1",
            DynamoDBSettings("table", endpoint_url="http://127.0.0.1:1"),
        ),
        (
            "dynamodb://table?endpoint_url=http://[::1]:8000",
            DynamoDBSettings("table", endpoint_url="http://[::1]:8000"),
        ),
        ("dynamodb://table?shards=64", DynamoDBSettings("table", max_shards=64)),
        (EVERYTHING, DynamoDBSettings("My_table.a-1", "us-gov-west-1", "https://h:8000/p", "me too", 1)),
    ],
)
def test_every_setting_of_a_url_is_read(url: str, expected: DynamoDBSettings) -> None:
    assert read_url(url) == expected


def test_nothing_is_asked_before_it_is_used() -> None:
    """Neither for credentials nor for an address."""
    for limiter in (SyncRateLimiter, RateLimiter):
        assert "dynamodb://table" in repr(limiter("dynamodb://table?endpoint_url=http://127.0.0.1:1&profile=nobody"))


def test_a_url_says_its_region_or_endpoint() -> None:
    assert read_url("dynamodb://table?region=eu-west-1").where == "region eu-west-1"
    assert read_url("dynamodb://table?endpoint_url=http://h:1").where == "http://h:1"
