"""The bucket of audit events: it outlives its stack, unless somebody says otherwise."""

from __future__ import annotations

from .clients import Aws, code_of, translated


def remove_bucket(aws: Aws, name: str) -> None:
    """With everything in it."""
    s3 = aws.client("s3")
    with translated():
        try:
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=name):
                keys = [{"Key": found["Key"]} for found in page.get("Contents", ())]
                if keys:
                    s3.delete_objects(Bucket=name, Delete={"Objects": keys, "Quiet": True})
            s3.delete_bucket(Bucket=name)
        except s3.exceptions.ClientError as error:
            if code_of(error) != "NoSuchBucket":
                raise
