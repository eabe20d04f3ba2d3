"""Rate limits for HTTP: rules, plans and identities for an API, and clients that limit themselves.

What needs a framework or a client library is in a module of its own: `fastapi`, `flask`, `django`, `clients`.
"""

from ..files import DocumentError
from .addresses import Addresses
from .answer import HttpRefusal
from .asgi import RateLimitMiddleware
from .call import HttpCall
from .engine import RuleEngine
from .identity import Identity, bearer, header
from .limits import read_limits
from .rules import Match, Rule, Rules
from .rules_file import RulesFile, load_rules
from .tiers import Plans
from .wsgi import RateLimitWsgiMiddleware

Call, Engine, Refusal = HttpCall, RuleEngine, HttpRefusal  # their names before they were unique

__all__ = [
    "Addresses",
    "DocumentError",
    "HttpCall",
    "HttpRefusal",
    "Identity",
    "Match",
    "Plans",
    "RateLimitMiddleware",
    "RateLimitWsgiMiddleware",
    "Rule",
    "RuleEngine",
    "Rules",
    "RulesFile",
    "bearer",
    "header",
    "load_rules",
    "read_limits",
]
