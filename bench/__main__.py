"""`python -m bench`, from the root of the repository."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from headgate.testing.servers.redis import NotInstalledError

from . import picture, report
from .run import GROWTH, SECTIONS, check_installed, run


def main() -> int:
    options = _options()
    console = Console()
    if options.markdown:
        return _markdown(options.out / "latest.json", options.markdown)
    # Also when stopped by a signal, leave no temporary files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    start = time.monotonic()
    try:
        with console.status("") as status:
            result = run(options.only, quick=options.quick, say=lambda section: status.update(f"measuring: {section}"))
    except KeyboardInterrupt:
        console.print("stopped; nothing was saved")
        return 130
    except NotInstalledError as error:
        instead = ",".join(filter(_installed, SECTIONS))
        console.print(f"{error}; or leave it out: --only {instead}", markup=False)
        return 1
    report.show(result, console)
    # What is not the whole benchmark must not replace one that is.
    whole = not options.quick and options.only == list(SECTIONS)
    folder = options.out if whole else options.out / "partial"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "latest.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    drawn = picture.draw(result, folder)
    files = "latest.json, benchmarks.png, benchmarks.svg" if drawn else "latest.json"
    console.print(f"[dim]{time.monotonic() - start:.0f} seconds; saved in {folder}: {files}[/]", highlight=False)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="headgate and its peers in one run")
    parser.add_argument("--quick", action="store_true", help="fewer turns and 100,000 entities instead of 1,000,000")
    parser.add_argument(
        "--only",
        type=_sections,
        default=list(SECTIONS),
        metavar="A,B",
        help=f"some sections: {', '.join(SECTIONS)}; growth means {' and '.join(GROWTH)}",
    )
    parser.add_argument("--out", type=Path, default=Path("bench/results"), help="folder for JSON and pictures")
    parser.add_argument(
        "--markdown", metavar="FILE", help="measure nothing: write the saved results into FILE ('-' prints them)"
    )
    return parser.parse_args()


def _sections(text: str) -> list[str]:
    wanted = {name for word in text.split(",") for name in (GROWTH if word == "growth" else (word.strip(),))}
    if unknown := wanted.difference(SECTIONS):
        raise argparse.ArgumentTypeError(f"there is no section {min(unknown)!r}: choose from {', '.join(SECTIONS)}")
    return [section for section in SECTIONS if section in wanted]


def _installed(section: str) -> bool:
    try:
        check_installed(section)
    except NotInstalledError:
        return False
    return True


def _markdown(results: Path, target: str) -> int:
    if not results.exists():
        print(f"there are no results in {results} yet: run python -m bench first", file=sys.stderr)
        return 1
    result = json.loads(results.read_text())
    if target == "-":
        print(report.markdown(result), end="")
    else:
        report.write_into(Path(target), result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
