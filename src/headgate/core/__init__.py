"""What headgate means: the arithmetic and the value types. No clock, no I/O, no async, no dependency.

Read `bucket.py` first.
"""
