"""Print the dashboard."""

import sys

from .grafana import dashboard

sys.stdout.write(dashboard())
