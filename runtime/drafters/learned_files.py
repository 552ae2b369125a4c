"""Files of what drafts have learned: a kind, a version, the bundle, and a digest of it all."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import InputError
from edgespec.system.files import replaced

DAMAGED = "it is damaged, delete it or name another file"
"""What to do about a file whose content is impossible."""

_LONGEST_HEAD = 1000
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class LearnedFile:
    """A format of files, each of which belongs to one bundle.

    Attributes:
        kind: first word of the file.
        version: version of the format.
        name: what such a file is called in messages.
    """

    kind: bytes
    version: int
    name: str

    def write(self, path: Path, fingerprint: str, body: bytes) -> None:
        """Writes a file, which is replaced as a whole or not at all.

        Args:
            path: path of the file; its folder exists.
            fingerprint: what it was learned from, in one line: the bundle's digest.
            body: content.

        Raises:
            InputError: if the file cannot be written.
        """
        content = b"%s %d %s\n" % (self.kind, self.version, fingerprint.encode()) + body
        with replaced(path) as partial:
            partial.write_bytes(content + hashlib.sha256(content).digest())

    def read(self, path: Path, fingerprint: str) -> bytes:
        """Returns the content of a file that `write` has written.

        Raises:
            InputError: if the file cannot be read, is damaged or of another kind, has another
                version, or was learned from another bundle.
        """
        try:
            with path.open("rb") as file:
                head = file.readline(_LONGEST_HEAD)
                kind, _, rest = head.partition(b" ")
                # Checked before the rest is read, because this may be any file.
                if kind != self.kind:
                    raise InputError(f"{path} is not a {self.name}: name another file")
                version, _, learned_from = rest.rstrip(b"\n").partition(b" ")
                if version != b"%d" % self.version:
                    raise InputError(
                        f"{path} is a {self.name} of version {_shown(version)}, this edgespec "
                        f"reads {self.version}: delete it or name another file"
                    )
                body = file.read()
        except OSError as error:
            raise InputError(
                f"{path} cannot be read ({error.strerror}): name a file that you may read"
            ) from error
        content, digest = body[:-_DIGEST], body[-_DIGEST:]
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
