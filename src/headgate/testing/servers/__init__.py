"""Real servers for tests: `headgate.testing.servers.redis`, and `process` to start servers of other kinds.

They run on free ports of this machine, in temporary folders, and end with the process that started them.
"""
