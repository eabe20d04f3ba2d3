"""Programs that speak DynamoDB's protocol: three engines, and a proxy before one that fails on demand.

No engine is DynamoDB itself, and each is wrong somewhere. `Ministack` is always there, `DynamoDBLocal` is AWS's own,
and `Dynoxide` is a third opinion.
"""

from headgate.testing.servers.process import NotInstalledError, ServerFailedError

from .endpoint import aws_environment
from .engine import Engine
from .engines import DynamoDBLocal, Dynoxide, Ministack
from .listener import Request
from .proxy import Proxy

__all__ = [
    "DynamoDBLocal",
    "Dynoxide",
    "Engine",
    "Ministack",
    "NotInstalledError",
    "Proxy",
    "Request",
    "ServerFailedError",
    "aws_environment",
]
