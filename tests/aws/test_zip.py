"""The code of the functions: all that they need, nothing else, and the same each time."""

from __future__ import annotations

import io
import json
import subprocess
import venv
import zipfile
from pathlib import Path

import boto3
import pytest

from headgate.aws.stack import build_package, export_lambda, package
from headgate.core.errors import ValidationError


@pytest.fixture(scope="module")
def made() -> package.Package:
    return build_package()


def test_it_is_the_same_each_time(made: package.Package, tmp_path: Path) -> None:
    written = export_lambda(tmp_path / "code.zip")
    assert (tmp_path / "code.zip").read_bytes() == made.data
    assert written == made


def test_its_digest_changes_with_the_code(made: package.Package, monkeypatch: pytest.MonkeyPatch) -> None:
    files = dict(package._files())
    name = next(iter(files))
    monkeypatch.setattr(package, "_files", lambda: files | {name: files[name] + b"\n"})
    assert build_package().digest != made.digest


def test_entries_carry_nothing_of_the_machine(made: package.Package) -> None:
    with zipfile.ZipFile(io.BytesIO(made.data)) as archive:
        entries = archive.infolist()
    assert [entry.filename for entry in entries] == sorted(made.names)
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {(entry.create_system, entry.external_attr) for entry in entries} == {(3, 0o644 << 16)}


def test_it_has_only_what_the_functions_import(made: package.Package) -> None:
    assert "headgate/aws/handlers.py" in made.names
    for unwanted in ("cli", "testing", "stores/sqlite", "stores/redis", "aws/stack"):
        assert not any(name.startswith(f"headgate/{unwanted}") for name in made.names), unwanted
    assert len(made.data) < 350_000


def test_it_forgets_no_file_that_a_module_may_read(made: package.Package) -> None:
    """There is none today. Should there be one, such as a script of a store, it has to come along."""
    folders = {path.parent for path in package.modules().values()}
    beside = [path for folder in folders for path in folder.iterdir() if path.is_file() and path.suffix != ".py"]
    assert [path.name for path in beside if path.name != "py.typed"] == []


IMPORTED = """
import json, sys
sys.path.insert(0, sys.argv[1])
import headgate.aws.handlers as handlers
from headgate import SyncRateLimiter
from headgate.stores import open_store
open_store("dynamodb://table?region=eu-west-1", 1.0).close()
assert callable(handlers.aggregate) and callable(handlers.reconcile)
ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "headgate"]
print(json.dumps([module.__file__ for module in ours]))
"""


@pytest.fixture(scope="module")
def lambda_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with boto3 and what that needs, and nothing else."""
    folder = tmp_path_factory.mktemp("lambda")
    venv.create(folder / "python", with_pip=False, symlinks=True)
    (site,) = (folder / "python").glob("lib/python*/site-packages")
    installed = Path(boto3.__file__).parents[1]
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six.py"):
        (site / name).symlink_to(installed / name)
    return folder / "python" / "bin" / "python"


def test_the_functions_are_imported_from_it_with_boto3_alone(
    made: package.Package, lambda_like: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(io.BytesIO(made.data)) as archive:
        archive.extractall(tmp_path / "task")
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true"}
    done = subprocess.run(
        [lambda_like, "-I", "-c", IMPORTED, tmp_path / "task"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert all(file.startswith(str(tmp_path / "task")) for file in json.loads(done.stdout))


def test_an_import_inside_a_function_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "aws").mkdir()
    for name, source in {
        "__init__.py": "",
        "aws/__init__.py": "",
        "aws/handlers.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .. import never\n"
        "def aggregate():\n    from ..late import thing\n    from . import beside\n    import headgate.far as far\n",
        "late.py": "from .aws.beside import *",
        "aws/beside.py": "",
        "far.py": "",
        "never.py": "",
    }.items():
        (tmp_path / name).write_text(source)
    monkeypatch.setattr(package, "ROOT", tmp_path)
    assert sorted(package.modules()) == ["", "aws", "aws.beside", "aws.handlers", "far", "late"]


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="cannot be written: No such file or directory"):
        export_lambda(tmp_path / "nowhere" / "code.zip")
