"""The Lua files beside this one."""

from __future__ import annotations

import re
from hashlib import sha1
from importlib.resources import files

_INCLUDE = re.compile(r"^-- include (\S+)$", re.MULTILINE)
_CONSTANTS = re.compile(r"^local ([A-Z_]+(?:, [A-Z_]+)*) = (\S.*?)(?: --.*)?$", re.MULTILINE)


class Script:
    """`lasting`: what it writes must survive a failover."""

    __slots__ = ("lasting", "sha", "source")

    def __init__(self, name: str, *, lasting: bool = False) -> None:
        self.lasting = lasting
        self.source = _with_constants_in_place(_read(name))
        self.sha = sha1(self.source.encode(), usedforsecurity=False).hexdigest()


def _read(name: str) -> str:
    source = files(__package__).joinpath(name).read_text()
    return _INCLUDE.sub(lambda included: _read(included[1]), source)


def _with_constants_in_place(source: str) -> str:
    """Replaces names in capitals by their values. Lua creates the locals of a script at every call, for each function
    that uses them: in settle.lua they took a quarter of the time of a call."""
    constants: dict[str, str] = {}
    for names, values in _CONSTANTS.findall(source):
        constants.update(zip(names.split(", "), values.split(", ")))
    source = _CONSTANTS.sub("", source)
    return re.sub(r"\b[A-Z_]+\b", lambda word: constants.get(word[0], word[0]), source)


SETTLE = Script("settle.lua", lasting=True)
DELETE = Script("delete.lua", lasting=True)
READ = Script("read.lua")
USAGE = Script("usage.lua")
SWEEP = Script("sweep.lua")
WRITE = Script("write.lua", lasting=True)
