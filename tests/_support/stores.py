"""Java's trust and key stores, made by Java's own keytool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def keytool() -> str:
    """Return the path of keytool; skip the test if there is none."""
    from pykaproducer.testing import ClusterError
    from pykaproducer.testing._jars import java

    try:
        found = java().with_name("keytool")
    except ClusterError as error:
        pytest.skip(f"no Java to make stores with: {error}")
    if not found.exists():
        pytest.skip(f"no keytool beside {found.parent / 'java'}")
    return str(found)


def _run(*words: str | Path) -> None:
    done = subprocess.run(
        [keytool(), *map(str, words)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def trust_store(path: Path, certificates: list[str], kind: str, password: str) -> Path:
    """Make a trust store of *kind* with *certificates* (PEM)."""
    for number, text in enumerate(certificates):
        pem = path.with_suffix(".ca")
        pem.write_text(text)
        _run(
            *("-importcert", "-noprompt", "-alias", f"ca{number}", "-file", pem),
            *("-keystore", path, "-storetype", kind, "-storepass", password),
        )
    return path


def key_store(
    path: Path,
    certificate: str,
    key: str,
    kind: str,
    password: str,
    *,
    alias: str = "me",
    key_password: str | None = None,
) -> Path:
    """Add a key and its certificate chain (PEM) to the store at *path*, or make it."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        load_pem_private_key,
        pkcs12,
    )

    mine, *others = x509.load_pem_x509_certificates(certificate.encode())
    secret = BestAvailableEncryption(password.encode())
    content = pkcs12.serialize_key_and_certificates(
        alias.encode(),
        load_pem_private_key(key.encode(), None),  # type: ignore[arg-type]
        mine,
        others,
        secret,
    )
    source = path.with_suffix(".source")
    source.write_bytes(content)
    of_key = password if key_password is None else key_password
    _run(
        *("-importkeystore", "-noprompt", "-srckeystore", source, "-srcstoretype", "PKCS12"),
        *("-srcstorepass", password, "-srcalias", alias, "-destkeystore", path),
        *("-deststoretype", kind, "-deststorepass", password, "-destkeypass", of_key),
    )
    return path
