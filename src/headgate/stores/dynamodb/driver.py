"""What the two transports share of botocore: creating a client, and what its exceptions mean."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from ...core.errors import ValidationError
from .exchange import MISCONFIGURED, Failed, Lost, Reply, Send
from .url import DynamoDBSettings

try:
    import botocore
    from botocore import exceptions
    from botocore.loaders import Loader
except ImportError as error:
    raise ValidationError("a DynamoDB store needs boto3 and aiobotocore: pip install 'headgate[dynamodb]'") from error

CONNECTIONS = 64
# The descriptions of AWS services are large, and all clients can share them.
LOADER = Loader(extra_search_paths=[Loader.CUSTOMER_DATA_PATH])

# Nothing was sent.
UNREACHED = (
    exceptions.EndpointConnectionError,
    exceptions.ConnectTimeoutError,
    exceptions.ProxyConnectionError,
    exceptions.SSLError,
)
UNUSABLE = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.NoRegionError,
    exceptions.ProfileNotFound,
    exceptions.InvalidRegionError,
    exceptions.TokenRetrievalError,
    exceptions.SSOError,
)
ErrorReply = exceptions.ClientError
NO_CLIENT = (exceptions.BotoCoreError, ValueError)
ERRORS = (exceptions.BotoCoreError, OSError)


def client_options(settings: DynamoDBSettings) -> dict[str, Any]:
    return {"region_name": settings.region, "endpoint_url": settings.endpoint_url}


def config_options(timeout_seconds: float) -> dict[str, Any]:
    """The driver retries nothing: it does not know what may be sent twice."""
    return {
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "connect_timeout": timeout_seconds,
        "read_timeout": timeout_seconds,
        "max_pool_connections": CONNECTIONS,
        "parameter_validation": False,
        "tcp_keepalive": True,
        # Otherwise botocore builds it twice for every request.
        "user_agent": f"headgate Botocore/{botocore.__version__}",
    }


@cache
def method_name(operation: str) -> str:
    """UpdateItem is client.update_item."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).lower()


def sent(client: Any, send: Send, timeout_seconds: float) -> Reply:
    """Send it with a boto3 client, and wait for the reply."""
    try:
        reply: Reply = getattr(client, method_name(send.operation))(**send.parameters)
        return reply
    except ErrorReply as error:
        return failed(error)
    except UNUSABLE as error:
        return Failed(MISCONFIGURED, str(error))
    except ERRORS as error:
        return lost(error, timeout_seconds)


def failed(error: Any) -> Failed:
    """An error reply, from botocore's exception."""
    response = error.response
    details = response.get("Error", {})
    code = str(details.get("Code", "")).rpartition("#")[2].removesuffix("Exception")
    reasons = [
        Failed(reason.get("Code", "None"), reason.get("Message", ""), reason.get("Item"))
        for reason in response.get("CancellationReasons", ())
    ]
    return Failed(code, str(details.get("Message", "")), response.get("Item"), reasons)


def lost(error: Exception, timeout_seconds: float) -> Lost:
    """An exception without a reply."""
    if isinstance(error, UNUSABLE):
        raise ValidationError(f"the AWS configuration cannot be used: {error}") from error
    if isinstance(error, exceptions.ReadTimeoutError):
        return late(timeout_seconds, sent=True)
    if isinstance(error, UNREACHED):
        return Lost(f"cannot be reached: {error}", sent=False)
    return Lost(f"closed the connection: {error}", sent=True)


def late(timeout_seconds: float, *, sent: bool) -> Lost:
    return Lost(f"did not answer within {timeout_seconds:g} s", sent=sent, late=True)
