"""What others see of a limiter: events, watchers, the audit trail, usage, the request log."""
