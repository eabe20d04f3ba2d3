#!/bin/sh
# Build sdist and wheel, check what PyPI would say, install the wheel in a clean environment, and run the demo and the
# README's first example from it.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
tools=$root/.venv/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$tools/python" -m build --outdir "$work/dist" "$root"
"$tools/python" -m twine check --strict "$work"/dist/*

"$tools/python" -m venv "$work/venv"
wheel=$(ls "$work"/dist/*.whl)
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "$wheel[cli,http]"
cd "$work"
"$work/venv/bin/python" - "$root/README.md" <<'PYTHON'
"""Every Python block of the README that needs no other package runs as it stands."""
import re, subprocess, sys
from pathlib import Path

blocks = re.findall(r"```python\n(.*?)```", Path(sys.argv[1]).read_text(), re.DOTALL)
plain = [one for one in blocks if not re.search(r"^\s*(?:from|import) (?!headgate|asyncio)", one, re.MULTILINE)]
assert plain, "the README has no block that runs by itself"
for block in plain:
    subprocess.run([sys.executable, "-c", block], check=True, timeout=60)
print(f"{len(plain)} of {len(blocks)} blocks of the README ran")
PYTHON
"$work/venv/bin/headgate" --version
"$work/venv/bin/headgate" demo --seconds 3
echo "ready: tag it as v$("$work/venv/bin/python" -c 'import headgate; print(headgate.__version__)') and upload what 'python -m build' makes"
