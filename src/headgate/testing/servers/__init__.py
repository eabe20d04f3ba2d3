"""Real servers for tests and benchmarks, one module for each kind: `headgate.testing.servers.redis`.

They run on free ports of this machine, in temporary folders, and end with the process that started them.
"""
