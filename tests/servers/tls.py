"""Certificates for one test: an authority and its signed certificates."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.servers.cache import ServerUnavailableError, run

_LIMIT_SECONDS = 60
_CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True, slots=True)
class Signed:
    """A certificate and its key, as PEM files."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that is trusted only if configured."""

    folder: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path) -> Authority:
        """Create an authority and its folder.

        Raises:
            ServerUnavailableError: There is no openssl.
        """
        folder.mkdir(parents=True)
        certificate, key = folder / "ca.pem", folder / "ca.key"
        subject = ["-subj", "/CN=authority of a test", "-days", "2", "-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        run([_openssl(), "req", "-x509", *_CURVE, "-keyout", str(key), "-out", str(certificate), *subject], _LIMIT_SECONDS)
        return cls(folder, certificate, key)

    def sign(self, name: str) -> Signed:
        """Return a certificate for the loopback names of this machine."""
        key, request, certificate = (self.folder / f"{name}.{ending}" for ending in ("key", "csr", "pem"))
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"{_NAMES}\n", "utf-8")
        run([_openssl(), "req", *_CURVE, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}"], _LIMIT_SECONDS)
        ours = ["-CA", str(self.certificate), "-CAkey", str(self.key), "-CAcreateserial", "-days", "2"]
        run(
            [_openssl(), "x509", "-req", "-in", str(request), *ours, "-extfile", str(extensions), "-out", str(certificate)],
            _LIMIT_SECONDS,
        )
        return Signed(certificate, key)

    def keystore(self, name: str) -> Path:
        """Return a file with key, certificate and authority, in the format of Kafka."""
        signed = self.sign(name)
        path = self.folder / f"{name}.keystore.pem"
        parts = (signed.key, signed.certificate, self.certificate)
        path.write_text("".join(part.read_text("utf-8") for part in parts), "utf-8")
        return path


def _openssl() -> str:
    path = shutil.which("openssl")
    if path is None:
        raise ServerUnavailableError("certificates need `openssl`, which is not installed")
    return path
