"""Prints the dashboard for Grafana."""

import sys

from . import dashboard

sys.stdout.write(dashboard())
