"""What-if: proposed limits applied to a log of requests, recorded or generated.

report = replay(read_limits_file("limits.yaml"), "requests.jsonl")
report.refused, report.entities[0].entity_id
"""

from .generate import Traffic, write_traffic
from .log import LogError, LoggedRequest, RequestLogFile
from .picture import picture
from .report import EntityReport, Moment, Report
from .simulate import replay

__all__ = [
    "EntityReport",
    "LogError",
    "LoggedRequest",
    "Moment",
    "Report",
    "RequestLogFile",
    "Traffic",
    "picture",
    "replay",
    "write_traffic",
]
