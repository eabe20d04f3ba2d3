"""Clients of AWS services for one account and region, and clear messages for their errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...core.errors import RateLimiterUnavailable, ValidationError
from ...core.names import shown_url
from .errors import StackError

_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "UnauthorizedAccess"}
_STRANGERS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AuthFailure",
}


class Aws:
    """None means the AWS configuration: the environment, a file, or the role of the machine.

    `keys`: an access key and its secret, instead of the configuration.
    """

    def __init__(
        self,
        region: str | None = None,
        profile: str | None = None,
        endpoint_url: str | None = None,
        keys: tuple[str, str] | None = None,
    ) -> None:
        try:
            from boto3.session import Session
            from botocore.config import Config
        except ImportError as error:
            raise ValidationError("AWS needs boto3: pip install 'headgate[dynamodb]'") from error
        self.endpoint_url = endpoint_url
        self._clients: dict[str, Any] = {}
        self._config = Config(
            retries={"mode": "standard", "total_max_attempts": 2 if endpoint_url else 6},
            connect_timeout=5,
            read_timeout=60,
        )
        with translated():
            access_key, secret = keys or (None, None)
            self._session = Session(access_key, secret, region_name=region, profile_name=profile)
        if not self._session.region_name:
            raise ValidationError("no region: pass region (--region eu-west-1), or set AWS_DEFAULT_REGION")
        self.region: str = self._session.region_name

    def client(self, service: str) -> Any:
        if service not in self._clients:
            try:
                with translated():
                    self._clients[service] = self._session.client(
                        service, endpoint_url=self.endpoint_url, config=self._config
                    )
            except ValueError as error:  # also from `translated`, whose message is kept
                raise ValidationError(str(error)) from None
        return self._clients[service]

    def account(self) -> str:
        with translated():
            return str(self.client("sts").get_caller_identity()["Account"])

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def code_of(error: Exception) -> str:
    """AWS's error code; empty if there was no reply."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def message_of(error: Exception) -> str:
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Message", "")) if isinstance(response, dict) else ""


@contextmanager
def translated() -> Iterator[None]:
    """Turn what boto3 raises into errors that say what to do."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _refused(error) from error
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        raise ValidationError(
            f"{error}: sign in to AWS, name a profile (--profile), or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    except (exceptions.ConnectionError, exceptions.HTTPClientError) as error:
        raise RateLimiterUnavailable(f"AWS does not answer: {shown_url(str(error))}") from error
    except exceptions.BotoCoreError as error:
        raise ValidationError(f"AWS cannot be used with this configuration: {error}") from None


def _refused(error: Any) -> StackError:
    code, message = code_of(error), message_of(error)
    if code in _DENIED:
        return StackError(f"these credentials may not call {error.operation_name}: {message}")
    if code in _STRANGERS:
        return StackError(f"AWS does not accept these credentials ({code}): sign in again, or name another profile")
    return StackError(f"AWS refused {error.operation_name}: {code}: {message}")
