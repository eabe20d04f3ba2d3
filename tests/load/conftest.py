"""What the load tests found, as a table after them."""

from __future__ import annotations

from typing import Any

COLUMNS = ("load", "seconds", "faults", "operations", "unanswered", "admitted", "at most", "used", "holders")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    rows = [value for report in reports for name, value in report.user_properties if name == "load"]
    rows = [(*row, *[""] * (len(COLUMNS) - len(row))) for row in rows]
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows)]
    terminalreporter.section("load")
    for name, *numbers in (COLUMNS, *rows):
        columns = [name.ljust(widths[0]), *(number.rjust(width) for number, width in zip(numbers, widths[1:]))]
        terminalreporter.write_line("  ".join(columns))
