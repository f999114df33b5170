"""Secrets in properties: the names of secret properties, and values that name a file, `@PATH`.

Other users can read a secret on a command line or in an option of a Spark query: in the list of
processes, in the history of the shell, in Spark's pages. So a value `@PATH` stands for the contents
of a file, and the environment variable ZKCONSUMER_AUTH_CREDENTIAL can hold ZooKeeper's credential.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zkconsumer.errors import ConfigError

CREDENTIAL: Final = "ZKCONSUMER_AUTH_CREDENTIAL"
"""The environment variable that can hold the value of `zookeeper.auth.credential`."""

SCHEME_NAME: Final = "zookeeper.auth.scheme"
CREDENTIAL_NAME: Final = "zookeeper.auth.credential"

MAX_BYTES: Final = 65_536
"""Maximum size, in bytes, of a file with a secret; a private key with its chain is shorter.

A longer file is refused, because it is not a secret.
"""

_NAME = re.compile(r"password|passphrase|secret|credential|key\.pem|oauthbearer\.config")


def is_secret(name: str) -> bool:
    """Return whether the values of this property are secrets."""
    return _NAME.search(name) is not None


def reveal(name: str, text: str, place: str) -> str:
    """Return the value of a property; for a secret `@PATH`, the contents of the file.

    A line end at the end of the file is removed. Raises ConfigError if the file cannot be read.
    """
    stripped = text.strip()
    if not stripped.startswith("@") or not is_secret(name):
        return text
    path = Path(stripped[1:]).expanduser()
    try:
        data = path.read_bytes()[: MAX_BYTES + 1]
        if len(data) > MAX_BYTES:
            raise ConfigError(
                f"the file is longer than {MAX_BYTES} bytes, so it is not a secret", where=str(path)
            )
        return data.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(
            f"the file with the secret {name} cannot be read: {why}",
            where=f"{path}, {place}",
            remedy="name a readable file after @",
        ) from error


def from_environment(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the environment's credential if these properties need a credential and have none."""
    value = os.environ.get(CREDENTIAL)
    is_needed = SCHEME_NAME in properties and CREDENTIAL_NAME not in properties
    return {CREDENTIAL_NAME: value} if value and is_needed else {}
