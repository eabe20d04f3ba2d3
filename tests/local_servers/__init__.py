"""DynamoDB engines and PostgreSQL servers for the tests and the benchmarks.

The base class is `headgate.testing.servers.process.ServerProcess`, which users of the library have too.
"""
