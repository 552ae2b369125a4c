"""Files of what was learned of a target: a line with their kind, then entries, and a digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

from edgespec.errors import InputError
from edgespec.system.files import replaced

VERSION = 1
"""Version of the file format of `Successors.save`."""

DAMAGED = "it is damaged, delete it or name another file"
"""What errors say of a file whose content contradicts itself."""

_KIND = b"edgespec-draft-memory"
_LONGEST_HEAD = 1000
_DIGEST = hashlib.sha256().digest_size


def write_memory(path: Path, fingerprint: str, body: bytes) -> None:
    """Writes a file: its kind, its version, what it was learned from, and a digest of it all."""
    content = b"%s %d %s\n" % (_KIND, VERSION, fingerprint.encode()) + body
    with replaced(path, private=True) as partial:
        partial.write_bytes(content + hashlib.sha256(content).digest())


def read_memory(path: Path, fingerprint: str) -> bytes:
    """Returns the content of a file that `write_memory` has written; see `Successors.load`."""
    try:
        with path.open("rb") as file:
            head = file.readline(_LONGEST_HEAD)
            kind, _, rest = head.partition(b" ")
            # Checked before the rest is read, because this may be any file.
            if kind != _KIND:
                raise InputError(f"{path} is not a draft memory: name another file")
            version, _, learned_from = rest.rstrip(b"\n").partition(b" ")
            if version != b"%d" % VERSION:
                raise InputError(
                    f"{path} is a draft memory of version {_shown(version)}, this edgespec "
                    f"reads {VERSION}: delete it or name another file"
                )
            body = file.read()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}): name a file that you may read"
        ) from error
    content = body[:-_DIGEST]
    digest = body[-_DIGEST:]
    if hashlib.sha256(head + content).digest() != digest:
        raise InputError(f"{path}: its SHA-256 does not match: {DAMAGED}")
    if learned_from != fingerprint.encode():
        raise InputError(
            f"{path} was learned from bundle {_shown(learned_from)}, this is {fingerprint}: "
            "name another file, one for each bundle"
        )
    return content


def _shown(field: bytes) -> str:
    return repr(field.decode(errors="replace"))
