"""Storage: the table, the archive, and the queue for batches that the aggregator gave up on."""

from __future__ import annotations

from ....stores.dynamodb.table import STREAM, TTL
from ....stores.dynamodb.table import TABLE as DEFINITION
from .words import HAS_ARCHIVE, HAS_FUNCTIONS, HAS_KEY, Json, att, ref, sub, when

TABLE = "Table"
ARCHIVE = "ArchiveBucket"
DEAD_LETTERS = "DeadLetterQueue"


def resources() -> Json:
    return {
        TABLE: _table(),
        DEAD_LETTERS: _dead_letters(),
        "DeadLetterQueuePolicy": _dead_letters_policy(),
        ARCHIVE: _archive(),
        "ArchiveBucketPolicy": _archive_policy(),
    }


def _table() -> Json:
    return {
        "Type": "AWS::DynamoDB::Table",
        # Deleted with the stack, which `headgate aws delete` asks about; never by a change of the template.
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Retain",
        "Properties": {
            "TableName": ref("AWS::StackName"),
            **DEFINITION,
            "StreamSpecification": {"StreamViewType": STREAM["StreamViewType"]},
            "TimeToLiveSpecification": TTL,
            "PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": ref("PointInTimeRecovery")},
            "DeletionProtectionEnabled": ref("DeletionProtection"),
            "SSESpecification": when(
                HAS_KEY, {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": ref("KmsKeyArn")}
            ),
        },
    }


def _dead_letters() -> Json:
    return {
        "Type": "AWS::SQS::Queue",
        "Condition": HAS_FUNCTIONS,
        "DeletionPolicy": "Delete",
        "UpdateReplacePolicy": "Delete",
        "Properties": {"MessageRetentionPeriod": 14 * 86_400, "SqsManagedSseEnabled": True},
    }


def _dead_letters_policy() -> Json:
    return {
        "Type": "AWS::SQS::QueuePolicy",
        "Condition": HAS_FUNCTIONS,
        "Properties": {
            "Queues": [ref(DEAD_LETTERS)],
            "PolicyDocument": _only_encrypted("sqs:*", [att(DEAD_LETTERS, "Arn")]),
        },
    }


def _archive() -> Json:
    return {
        "Type": "AWS::S3::Bucket",
        "Condition": HAS_ARCHIVE,
        # Outlives the stack, unless its creation failed.
        "DeletionPolicy": "RetainExceptOnCreate",
        "UpdateReplacePolicy": "Retain",
        "Properties": {
            "BucketEncryption": {
                "ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
            },
            "PublicAccessBlockConfiguration": {
                "BlockPublicAcls": True,
                "BlockPublicPolicy": True,
                "IgnorePublicAcls": True,
                "RestrictPublicBuckets": True,
            },
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            "LifecycleConfiguration": {
                "Rules": [
                    {
                        "Id": "age",
                        "Status": "Enabled",
                        "Transitions": [
                            {"StorageClass": "GLACIER", "TransitionInDays": ref("ArchiveGlacierDays")},
                        ],
                        "ExpirationInDays": ref("ArchiveExpireDays"),
                        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
                    }
                ]
            },
        },
    }


def _archive_policy() -> Json:
    return {
        "Type": "AWS::S3::BucketPolicy",
        "Condition": HAS_ARCHIVE,
        "DeletionPolicy": "RetainExceptOnCreate",
        "UpdateReplacePolicy": "Retain",
        "Properties": {
            "Bucket": ref(ARCHIVE),
            "PolicyDocument": _only_encrypted("s3:*", [att(ARCHIVE, "Arn"), sub(f"${{{ARCHIVE}.Arn}}/*")]),
        },
    }


def _only_encrypted(actions: str, arns: list[Json]) -> Json:
    return {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "OnlyEncryptedConnections",
                "Effect": "Deny",
                "Principal": "*",
                "Action": actions,
                "Resource": arns,
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }
