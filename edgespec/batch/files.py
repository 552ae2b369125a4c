"""The files of a batch: the input, one request a line, and the journal of answers so far.

The first line of a journal says which batch it is, and is written at once with the file. Each
further line is one answer, safe as soon as it is added. A process or machine that dies while it
writes leaves at most one incomplete line, which is dropped at the next start.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic_core import from_json

from edgespec.errors import InputError
from edgespec.serve.protocols.fields import Json, one_line
from edgespec.system import records
from edgespec.system.files import read_file, replaced, sync_folder

_log = logging.getLogger(__name__)

_FORMAT = 1
_LARGEST = 1 << 32  # bytes of a file of requests


@dataclass(frozen=True)
class BatchLine:
    """A line of the input that is not empty.

    Attributes:
        number: number of the line, from 1.
        data: the line's bytes, not checked.
        custom_id: the client's name for the request; None if it cannot be read.
    """

    number: int
    data: bytes
    custom_id: str | None


@dataclass(frozen=True)
class Requests:
    """The input of a batch.

    Attributes:
        lines: the lines that are not empty, in order.
        digest: SHA-256 of the whole input.
        time: time of the file's last change, in whole seconds since 1970.
    """

    lines: tuple[BatchLine, ...]
    digest: str
    time: int


def read_requests(path: Path) -> Requests:
    """Reads the input of a batch; what is wrong within a line is found when it is answered.

    Raises:
        InputError: if there is no request, or two have the same custom_id.
        OSError: if the file cannot be read.
    """
    data = read_file(path, _LARGEST)
    # Not splitlines, which would also split at characters that JSON strings may contain.
    pieces = enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1)
    lines = tuple(
        BatchLine(number, text, _custom_id(text)) for number, text in pieces if text.strip()
    )
    if not lines:
        raise InputError(f"{path} has no requests: give a JSON object on each line")
    seen: dict[str, int] = {}
    for line in lines:
        if line.custom_id is not None:
            first = seen.setdefault(line.custom_id, line.number)
            if first != line.number:
                raise InputError(
                    f"{path}: lines {first} and {line.number} have the same custom_id "
                    f"{line.custom_id!r:.80}: give each request its own"
                )
    return Requests(lines, hashlib.sha256(data).hexdigest(), int(path.stat().st_mtime))


def _custom_id(data: bytes) -> str | None:
    try:
        value = from_json(data)
    except ValueError:
        return None
    found = value.get("custom_id") if isinstance(value, dict) else None
    return found if isinstance(found, str) and found else None


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
        with replaced(path, private=True) as partial:
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
            number = record["line"]
            status = record["output"]["response"]["status_code"]
        except (ValueError, TypeError, KeyError):  # the disk may have kept only some of its blocks
            return False
        self._places[number] = place
        self.failed += status >= 400
        return True


@contextmanager
def only_writer(output: Path) -> Iterator[None]:
    """Keeps other processes from working on the same output; ends with the process.

    Raises:
        InputError: if another process is at work, or the output's folder cannot be written.
    """
    path = Path(f"{output}.lock")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InputError(
            f"another process is writing {output}: wait for it, or give another output"
        ) from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}): name an output in an existing, "
            "writable folder"
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes the file with the lock
            path.unlink()
        lock.release()


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
    return f"{one_line(value)}\n".encode()
