"""The whole stack on this machine: ministack plays AWS, the functions really run, and nothing leaves the machine."""

from .process import ServerDied
from .sandbox import Sandbox, SandboxStatus

__all__ = ["Sandbox", "SandboxStatus", "ServerDied"]
