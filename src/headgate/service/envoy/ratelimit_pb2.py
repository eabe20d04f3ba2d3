"""The messages of ratelimit.proto, made from its compiled form. `make proto` compiles it, and writes the types beside.

protoc's own Python would need a protobuf at least as new as the protoc was. And it would put names that are Envoy's
into the pool that all of a process share, where Envoy's own files may be as well.
"""

from __future__ import annotations

from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_pool = DescriptorPool()
for _file in FileDescriptorSet.FromString(Path(__file__).with_name("ratelimit.binpb").read_bytes()).file:
    _pool.AddSerializedFile(_file.SerializeToString())

DESCRIPTOR = _pool.FindFileByName("ratelimit.proto")
RateLimitRequest = GetMessageClass(DESCRIPTOR.message_types_by_name["RateLimitRequest"])
RateLimitResponse = GetMessageClass(DESCRIPTOR.message_types_by_name["RateLimitResponse"])
RateLimitDescriptor = GetMessageClass(DESCRIPTOR.message_types_by_name["RateLimitDescriptor"])
HeaderValue = GetMessageClass(DESCRIPTOR.message_types_by_name["HeaderValue"])
