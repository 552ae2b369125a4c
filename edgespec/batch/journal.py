"""The answers of an unfinished batch on disk, each safe as soon as it is added.

The first line says which batch it is, and is written at once with the file. Each further line is
one answer. A process or machine that dies while it writes leaves at most one incomplete line, which
is dropped at the next start.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import InputError
from edgespec.server.bodies import Json
from edgespec.system import records
from edgespec.system.files import replaced, sync_folder

_log = logging.getLogger(__name__)

_FORMAT = 1


@dataclass(frozen=True)
class Start:
    """What a batch was begun with.

    Attributes:
        input: SHA-256 of the input.
        bundle: digest of the bundle.
        model: name of the model for clients.
        context: maximum number of tokens of prompt and output together.
        engine: engine of the target.
        created: time of all answers, in seconds since 1970.
        format: version of the file's format.
    """

    input: str
    bundle: str
    model: str
    context: int
    engine: str
    created: int
    format: int = _FORMAT


class Journal:
    """The journal of a batch; only one process may have it open.

    Args:
        path: file of the journal, which exists.

    Attributes:
        start: what the batch was begun with.
        failed: number of answers that are errors.

    Raises:
        InputError: if the file is no journal, or cannot be read or repaired.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[int, int] = {}  # where the answer to each line begins
        self.failed = 0
        with _told(path):
            with path.open("rb") as file:
                self.start = self._read_start(file.readline())
                end = file.tell()
                for data in file:
                    if not self._take(data, end):
                        break
                    end += len(data)
            self._file = path.open("rb+", buffering=0)
            size = self._file.seek(0, os.SEEK_END)
            if end < size:
                _log.info("%s: %d bytes of an unfinished line are dropped", path, size - end)
                self._file.truncate(end)
            self._end = self._file.seek(end)

    @classmethod
    def begin(cls, path: Path, start: Start) -> Journal:
        """Creates a journal without answers.

        Raises:
            InputError: if the file cannot be written.
        """
        with replaced(path) as partial:
            partial.write_bytes(_line(records.encode(start)))
        with _told(path):
            sync_folder(path.parent)
        return cls(path)

    def __contains__(self, number: int) -> bool:
        """Whether a line of the input has its answer."""
        return number in self._places

    def __len__(self) -> int:
        return len(self._places)

    def add(self, number: int, output: Json) -> None:
        """Adds the answer to a line of the input; it then survives a crash and a power cut.

        Raises:
            InputError: if the file cannot be written.
        """
        data = _line({"line": number, "output": output})
        with _told(self._path):
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        self._take(data, self._end)
        self._end += len(data)

    def outputs(self) -> Iterator[bytes]:
        """Returns the answers as lines, in the order of the input."""
        with _told(self._path), self._path.open("rb") as file:
            for _, place in sorted(self._places.items()):
                file.seek(place)
                yield _line(json.loads(file.readline())["output"])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _read_start(self, data: bytes) -> Start:
        try:
            start = records.decode(Start, json.loads(data), "start")
        except (ValueError, RecursionError) as error:  # RecordError is a ValueError
            raise InputError(
                f"{self._path} is not an unfinished batch of this version: move it away, or begin "
                "again with --restart"
            ) from error
        if start.format != _FORMAT:
            raise InputError(
                f"{self._path} has format {start.format} and not {_FORMAT}: finish it with the "
                "version of edgespec that began it, or begin again with --restart"
            )
        return start

    def _take(self, data: bytes, place: int) -> bool:
        """Notes a line of the journal; returns whether it is whole."""
        if not data.endswith(b"\n"):
            return False
        try:
            record = json.loads(data)
            number, status = record["line"], record["output"]["response"]["status_code"]
        except (ValueError, TypeError, KeyError):  # the disk may have kept only some of its blocks
            return False
        self._places[number] = place
        self.failed += status >= 400
        return True


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turns an OSError into an error that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}): mend that and start again; "
            "what is in it is kept"
        ) from error


def _line(value: object) -> bytes:
    return f"{json.dumps(value, ensure_ascii=False)}\n".encode()
