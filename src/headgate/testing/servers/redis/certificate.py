"""A certificate for localhost and 127.0.0.1, and the authority that signed it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ..process import ServerFailedError, installed

# Python 3.13 refuses an authority without a key usage, and a certificate that does not name the authority's key.
_EXTENSIONS = """
[req]
distinguished_name = name
prompt = no
[name]
CN = headgate
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = DNS:localhost, IP:127.0.0.1
"""


def make_certificate(folder: Path) -> None:
    """Write `ca.crt`, `server.crt` and `server.key`."""
    openssl = installed("openssl", "apt-get install openssl, or brew install openssl")
    (folder / "extensions.cnf").write_text(_EXTENSIONS)
    steps = (
        "ecparam -name prime256v1 -genkey -noout -out ca.key",
        "ecparam -name prime256v1 -genkey -noout -out server.key",
        "req -new -x509 -config extensions.cnf -extensions authority -key ca.key -days 2 -out ca.crt",
        "req -new -config extensions.cnf -subj /CN=localhost -key server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2"
        " -extfile extensions.cnf -extensions server -out server.crt",
    )
    for step in steps:
        done = subprocess.run([openssl, *step.split()], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailedError(f"openssl {step} failed: {done.stderr.strip()}")
