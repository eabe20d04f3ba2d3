"""The S3 buckets of a stack: the functions' code, and the archive of audit events.

A template holds only 4 KB of code. If the code were put into the functions afterwards, the stream would be read by
something else for a moment, and a rollback would bring that back. So CloudFormation gets the code from a private
bucket, one for an account and region, under the stack's name and a digest of its contents. The same code is never
uploaded twice. Other code has another key, so CloudFormation notices the change.
"""

from __future__ import annotations

from typing import Any

from .clients import Aws, code_of, translated
from .errors import StackError
from .package import Package, build_package

NONE = "none"  # as the template has it
_ABSENT = {"404", "NoSuchBucket", "NotFound", "NoSuchKey"}


class CodeBucket:
    """The bucket `name` of the user's; without one, headgate creates a bucket, and removes it with the last stack."""

    def __init__(self, aws: Aws, stack: str, name: str = NONE) -> None:
        self._s3 = aws.client("s3")
        self._region = aws.region
        self._account = aws.account()
        self._prefix = f"{stack}/"
        ours = f"headgate-code-{self._account}-{aws.region}"
        self.name = ours if name == NONE else name
        self._own = self.name == ours

    def parameters(self, *, upload: bool) -> dict[str, str]:
        """The parameters of the template: where the current code is, or that there is none."""
        if not upload:
            return {"CodeBucket": NONE, "CodeKey": ""}
        package = build_package()
        key = f"{self._prefix}{package.digest[:32]}.zip"
        with translated():
            self._make()
            if not self._has(key):
                self._put(key, package)
        return {"CodeBucket": self.name, "CodeKey": key}

    def clean_up(self, but: str = "") -> None:
        """Remove the stack's code except `but`, and the bucket if it is headgate's and empty."""
        with translated():
            if not self._exists():
                return
            for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=self._prefix):
                keys = [{"Key": found["Key"]} for found in page.get("Contents", ()) if found["Key"] != but]
                if keys:
                    self._s3.delete_objects(Bucket=self.name, Delete={"Objects": keys, "Quiet": True})
            if self._own and not self._s3.list_objects_v2(Bucket=self.name, MaxKeys=1).get("Contents"):
                self._s3.delete_bucket(Bucket=self.name, ExpectedBucketOwner=self._account)

    def _exists(self) -> bool:
        try:
            # The name can be guessed, and another account may have taken it: such a bucket is not used.
            self._s3.head_bucket(Bucket=self.name, ExpectedBucketOwner=self._account)
        except self._s3.exceptions.ClientError as error:
            if code_of(error) in _ABSENT:
                return False
            if code_of(error) in ("403", "AccessDenied", "Forbidden"):
                raise StackError(
                    f"bucket {self.name!r}, for the functions' code, cannot be used with these credentials or does not "
                    f"belong to account {self._account}: name another with code_bucket (--code-bucket)"
                ) from None
            raise
        return True

    def _make(self) -> None:
        if self._exists():
            return
        if not self._own:
            raise StackError(
                f"bucket {self.name!r}, for the functions' code, does not exist in this account: create it"
            )
        place: dict[str, Any] = {}
        if self._region != "us-east-1":
            place = {"CreateBucketConfiguration": {"LocationConstraint": self._region}}
        self._s3.create_bucket(Bucket=self.name, **place)
        self._s3.put_public_access_block(
            Bucket=self.name,
            PublicAccessBlockConfiguration={
                "BlockPublicAcls": True,
                "BlockPublicPolicy": True,
                "IgnorePublicAcls": True,
                "RestrictPublicBuckets": True,
            },
        )

    def _has(self, key: str) -> bool:
        try:
            self._s3.head_object(Bucket=self.name, Key=key)
        except self._s3.exceptions.ClientError as error:
            if code_of(error) in _ABSENT:
                return False
            raise
        return True

    def _put(self, key: str, package: Package) -> None:
        self._s3.put_object(
            Bucket=self.name,
            Key=key,
            Body=package.data,
            ContentType="application/zip",
            ExpectedBucketOwner=self._account,
        )


def remove_bucket(aws: Aws, name: str) -> None:
    """Remove a bucket with everything in it."""
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
