"""HTTP: rules, plans and identities in front of an API, and clients that limit themselves.

What a framework or a client library is needed for has a module of its own: `fastapi`, `flask`, `django`, `clients`.
"""

from ..files import DocumentError
from .addresses import Addresses
from .answer import Refusal
from .asgi import RateLimitMiddleware
from .call import Call
from .engine import Engine
from .identity import Identity, bearer, header
from .limits import read_limits
from .plans import Plans
from .rules import Match, Rule, Rules
from .rules_file import RulesFile, load_rules
from .wsgi import RateLimitWsgiMiddleware

__all__ = [
    "Addresses",
    "Call",
    "DocumentError",
    "Engine",
    "Identity",
    "Match",
    "Plans",
    "RateLimitMiddleware",
    "RateLimitWsgiMiddleware",
    "Refusal",
    "Rule",
    "Rules",
    "RulesFile",
    "bearer",
    "header",
    "load_rules",
    "read_limits",
]
