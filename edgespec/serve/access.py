"""Who may use a server, by which names and keys, and below which path."""

from __future__ import annotations

import hmac
import re
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgespec.errors import InputError
from edgespec.system.files import read_utf8

_LINE = re.compile(r"(?:(?P<name>[^\s:]+)(?::\s*|\s+)(?=\S))?(?P<key>\S+)")


@dataclass(frozen=True)
class Access:
    """Who may use a server.

    Attributes:
        keys: API keys of which clients must send one, by names for the log; none if they need none.
        hosts: further names by which a server that only this machine can reach may be asked.
        origins: other origins whose web pages may use the server; `*` for all.
        prefix: path before all routes, as `/edgespec`; a proxy may have removed it.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    prefix: str = ""

    def owner(self, given: Iterable[bytes]) -> str | None:
        """Returns whose key is among those that a client has sent; None: nobody's.

        All are compared whole, so that the time tells nothing of a key.
        """
        found: str | None = None
        for each in given:
            for name, key in self.keys.items():
                if hmac.compare_digest(each, key.encode()):
                    found = name
        return found


@dataclass(frozen=True)
class Certificate:
    """What a server shows that it is the one of its name, in files of PEM.

    Attributes:
        file: the certificate, with those that sign it behind it, and the key if `key` is None.
        key: the private key.
    """

    file: Path
    key: Path | None = None

    def check(self) -> None:
        """Checks that the files can be used.

        Raises:
            InputError: if not.
        """
        shown = self.file if self.key is None else f"{self.file} with the key {self.key}"
        try:
            # Nobody is asked for a passphrase: the server may start where nobody is.
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                self.file, self.key, password=lambda: ""
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
            raise InputError(
                f"the certificate {shown} cannot be used ({reason}): give files of PEM that belong "
                "together, with a key that has no passphrase"
            ) from error


def require_usable(key: str) -> str:
    """Returns an API key that clients can send.

    Raises:
        InputError: if they cannot.
    """
    if not key:
        raise InputError("the API key is empty: give one, or leave it out")
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise InputError(
            "the API key has characters that HTTP headers cannot contain: use printable ASCII "
            "characters, without spaces around them"
        )
    return key


def read_keys(path: Path) -> dict[str, str]:
    """Reads API keys by their names: one a line, as `name: key`, `name key` or the key alone.

    Lines that begin with `#` are notes.

    Raises:
        InputError: if it cannot be read, a line is something else, or two have one name.
    """
    try:
        lines = read_utf8(path).splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): give a text file") from error
    found = dict[str, str]()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        read = _LINE.fullmatch(line.strip())
        if read is None:
            raise InputError(f"line {number} of {path} is no API key: write NAME: KEY")
        name = read["name"] or f"line {number}"
        if name in found:
            raise InputError(f"{path} has two keys of the name {name!r}: rename one")
        found[name] = require_usable(read["key"])
    if not found:
        raise InputError(f"{path} has no API key: write one a line, as NAME: KEY")
    return found
