"""The messages are on the wire what Envoy's own are, and the compiled form is that of the .proto."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

import headgate.service.envoy
from headgate.service.envoy.descriptors import UNITS
from headgate.service.envoy.ratelimit_pb2 import DESCRIPTOR, RateLimitRequest, RateLimitResponse
from headgate.service.envoy.servicer import SERVICE

FOLDER = Path(headgate.service.envoy.__file__).parent
# As in envoy/service/ratelimit/v3/rls.proto and what it imports.
OFFICIAL = {
    "RateLimitRequest": {"domain": 1, "descriptors": 2, "hits_addend": 3},
    "RateLimitDescriptor": {"entries": 1, "limit": 2, "hits_addend": 3},
    "RateLimitDescriptor.Entry": {"key": 1, "value": 2},
    "RateLimitDescriptor.RateLimitOverride": {"requests_per_unit": 1, "unit": 2},
    "RateLimitResponse": {
        "overall_code": 1,
        "statuses": 2,
        "response_headers_to_add": 3,
        "request_headers_to_add": 4,
        "raw_body": 5,
    },
    "RateLimitResponse.RateLimit": {"requests_per_unit": 1, "unit": 2, "name": 3},
    "RateLimitResponse.DescriptorStatus": {
        "code": 1,
        "current_limit": 2,
        "limit_remaining": 3,
        "duration_until_reset": 4,
    },
    "HeaderValue": {"key": 1, "value": 2},
}


def messages(of: Any = DESCRIPTOR.message_types_by_name, prefix: str = "") -> dict[str, Any]:
    found = {}
    for name, message in of.items():
        found[prefix + name] = message
        found.update(messages(message.nested_types_by_name, f"{prefix}{name}."))
    return found


def test_fields_have_the_numbers_of_envoy() -> None:
    numbers = {name: {field.name: field.number for field in message.fields} for name, message in messages().items()}
    assert numbers == OFFICIAL
    assert (
        DESCRIPTOR.services_by_name["RateLimitService"].full_name
        == SERVICE
        == "envoy.service.ratelimit.v3.RateLimitService"
    )
    assert dict(RateLimitResponse.Code.items()) == {"UNKNOWN": 0, "OK": 1, "OVER_LIMIT": 2}
    units = DESCRIPTOR.enum_types_by_name["RateLimitUnit"].values_by_name
    assert {name: value.number for name, value in units.items()} == {"UNKNOWN": 0, **UNITS}
    assert UNITS == {"SECOND": 1, "MINUTE": 2, "HOUR": 3, "DAY": 4, "WEEK": 7, "MONTH": 5, "YEAR": 6}


def with_strings() -> Any:
    """The same messages with a value that is a string, as it is to Envoy."""
    pool = DescriptorPool()
    compiled = FileDescriptorSet.FromString((FOLDER / "ratelimit.binpb").read_bytes())
    for file in compiled.file:
        for message in file.message_type:
            for nested in message.nested_type:
                for field in nested.field:
                    if (message.name, nested.name, field.name) == ("RateLimitDescriptor", "Entry", "value"):
                        field.type = field.TYPE_STRING
        pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("envoy.service.ratelimit.v3.RateLimitRequest"))


@given(st.text())
def test_a_value_is_on_the_wire_what_a_string_is(value: str) -> None:
    sent = with_strings()(domain="edge", descriptors=[{"entries": [{"key": "k", "value": value}]}])
    read = RateLimitRequest.FromString(sent.SerializeToString())
    assert read.descriptors[0].entries[0].value == value.encode()
    assert read.SerializeToString() == sent.SerializeToString()


def test_the_compiled_form_is_that_of_the_proto(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools compiles the .proto")
    options = ["--include_imports", "--descriptor_set_out=ratelimit.binpb"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{FOLDER}", *options, "ratelimit.proto"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert compiled(tmp_path) == compiled(FOLDER)


def test_the_types_have_every_field() -> None:
    types = (FOLDER / "ratelimit_pb2.pyi").read_text()
    for message in messages().values():
        fields = [field.name for field in message.fields]
        assert f"class {message.name}(_message.Message)" in types
        assert f"__slots__ = ({', '.join(repr(name) for name in fields)})".replace("'", '"') in types


def compiled(folder: Path) -> FileDescriptorProto:
    """Our part of it. What is imported may differ from one protoc to the next."""
    files = FileDescriptorSet.FromString((folder / "ratelimit.binpb").read_bytes()).file
    (own,) = [file for file in files if file.name == "ratelimit.proto"]
    return own


CLASH = """
from google.protobuf import descriptor_pb2, descriptor_pool
official = descriptor_pb2.FileDescriptorProto(name="ratelimit.proto", package="envoy.service.ratelimit.v3")
official.message_type.add(name="RateLimitRequest")
{first}
{second}
assert not RateLimitRequest.DESCRIPTOR.file.pool is descriptor_pool.Default()
assert not descriptor_pool.Default().FindMessageTypeByName("envoy.service.ratelimit.v3.RateLimitRequest").fields
"""


@pytest.mark.parametrize("ours_first", [True, False])
def test_those_of_envoy_itself_may_be_in_the_process_too(ours_first: bool) -> None:
    ours = "from headgate.service.envoy.ratelimit_pb2 import RateLimitRequest"
    theirs = "descriptor_pool.Default().AddSerializedFile(official.SerializeToString())"
    first, second = (ours, theirs) if ours_first else (theirs, ours)
    subprocess.run([sys.executable, "-c", CLASH.format(first=first, second=second)], check=True)
