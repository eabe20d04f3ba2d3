"""Real Redis servers: one, a cluster, and a primary with a replica under sentinels."""

from ..process import NotInstalledError, ServerFailedError
from .cluster import RedisCluster
from .sentinel import RedisSentinel
from .server import RedisServer, redis_server_binary

__all__ = [
    "NotInstalledError",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "ServerFailedError",
    "redis_server_binary",
]
