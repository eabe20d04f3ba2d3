"""The code of the functions: only those modules of headgate that they import. Lambda provides boto3.

The modules are found by reading the sources, including imports inside functions, because a rarely used import must be
there when it is needed.
"""

from __future__ import annotations

import ast
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import ValidationError

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT.name
START = "aws.handlers"
_PARTS = ("body", "orelse", "handlers", "finalbody", "cases")  # the parts of a statement that contain statements
_EARLIEST = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Package:
    """`digest` is of the contents: it does not depend on the compression."""

    data: bytes
    digest: str
    names: tuple[str, ...]


def build_package() -> Package:
    """The package. The same sources give the same bytes."""
    files = _files()
    digest = hashlib.sha256()
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in files.items():
            digest.update(f"{name}\0{len(content)}\0".encode() + content)
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.create_system = 3  # as on Unix, on every system
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return Package(made.getvalue(), digest.hexdigest(), tuple(files))


def export_lambda(path: Path | str) -> Package:
    """Write the package to a file."""
    package = build_package()
    try:
        Path(path).write_bytes(package.data)
    except OSError as error:
        raise ValidationError(f"{str(path)!r} cannot be written: {error.strerror}") from None
    return package


def _files() -> Mapping[str, bytes]:
    found = {}
    for path in sorted(modules().values()):
        found[f"{PACKAGE}/{path.relative_to(ROOT).as_posix()}"] = path.read_bytes()
    return found


def modules() -> dict[str, Path]:
    """All modules of headgate that the functions may import, by name without `headgate.`; "" is the package itself."""
    found: dict[str, Path] = {}
    waiting = [START]
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if name in found or path is None:
            continue
        found[name] = path
        waiting += _parents(name)
        waiting += _imported(name, path)
    return found


def _path(name: str) -> Path | None:
    place = ROOT.joinpath(*name.split(".")) if name else ROOT
    for path in (place / "__init__.py", place.with_suffix(".py")):
        if path.is_file():
            return path
    return None


def _parents(name: str) -> Iterator[str]:
    while name:
        name = name.rpartition(".")[0]
        yield name


def _imported(name: str, path: Path) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in _running(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            yield from (_inside(alias.name) for alias in node.names if _is_ours(alias.name))
        elif isinstance(node, ast.ImportFrom):
            base = _from(node, package)
            if base is not None:
                yield base
                yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _from(node: ast.ImportFrom, package: str) -> str | None:
    """The module of headgate that something is imported from; None for other packages."""
    if not node.level:
        return _inside(node.module) if node.module and _is_ours(node.module) else None
    parts = package.split(".") if package else []
    above = parts[: len(parts) - node.level + 1]
    return ".".join([*above, node.module] if node.module else above)


def _running(tree: ast.Module) -> Iterator[ast.AST]:
    """All statements that run: imports for type checkers do not."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        only_checked = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for part in _PARTS:
            if not (only_checked and part == "body"):
                waiting += getattr(node, part, ())


def _is_ours(module: str) -> bool:
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def _inside(module: str) -> str:
    return module.partition(".")[2]
