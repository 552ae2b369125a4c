"""Responses that were given, for requests that go on from one by its id."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import InputError, reason
from edgespec.serve.protocols.responses.items import ITEMS, Item
from edgespec.serve.refusals import RequestError, shorten_value
from edgespec.system.files import PRIVATE_FOLDER, read_file, replaced

_MOST = 64 << 20  # bytes of all that is kept
_SUFFIX = ".response.json"
_ID = re.compile(r"resp_[0-9a-f]{32}")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Turn:
    """What a response added to a conversation, as JSON, and the response before it."""

    previous: str | None
    items: bytes

    @property
    def content(self) -> bytes:
        """The content of its file, as `read` takes it: a line for each."""
        return json.dumps(self.previous).encode() + b"\n" + self.items

    @classmethod
    def read(cls, content: bytes) -> _Turn:
        """Returns the turn of a file.

        Raises:
            ValueError: if it is damaged.
        """
        head, _, items = content.partition(b"\n")
        previous = json.loads(head)
        if previous is not None and not (isinstance(previous, str) and _ID.fullmatch(previous)):
            raise ValueError("the response before it has no id")
        ITEMS.validate_json(items)
        return cls(previous, items)


class ResponseStore:
    """Keeps the turns of conversations; those that were not used for longest go first.

    They are in memory and, once `keep_in` names a folder, in files there, too.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._turns = OrderedDict[str, _Turn]()
        self._size = 0
        self._changing = threading.Lock()
        self._folder: Path | None = None

    def keep_in(self, folder: Path) -> None:
        """Takes over the responses of a folder, and keeps further ones there, for its owner alone.

        What is damaged is passed over, and the log says so.

        Raises:
            InputError: if the folder cannot be used.
        """
        try:
            folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            files = [each for each in folder.iterdir() if each.name.endswith(_SUFFIX)]
            files.sort(key=lambda each: each.lstat().st_mtime_ns)
        except (OSError, ValueError) as error:
            raise InputError(
                f"responses cannot be kept in {folder} ({reason(error)}): name a writable folder"
            ) from error
        with self._changing:
            self._folder = folder
            for file in files:
                id_ = file.name.removesuffix(_SUFFIX)
                try:
                    if not _ID.fullmatch(id_):
                        raise ValueError("its name is no id")
                    self._add(id_, _Turn.read(read_file(file, self._most)))
                except (OSError, ValueError, RecursionError) as error:
                    _log.warning("%s is passed over: %s", file, reason(error))

    def put(self, id_: str, previous: str | None, items: Sequence[Item]) -> None:
        """Keeps what was asked and answered behind a response, under the id of the new one."""
        turn = _Turn(previous, ITEMS.dump_json(list(items), exclude_none=True))
        with self._changing:
            self._write(id_, turn)
            self._add(id_, turn)

    def conversation(self, id_: str) -> list[Item]:
        """Returns all items up to a response, with its own.

        Raises:
            RequestError: if it, or one before it, is not here.
        """
        turns = list[_Turn]()
        place: str | None = id_
        with self._changing:
            while place is not None:
                turn = self._turns.get(place)
                if turn is None or len(turns) == len(self._turns):  # or files name each other
                    raise RequestError(
                        400,
                        f"previous_response_id is {shorten_value(id_)}, which is not here, or not "
                        "any more: send the whole conversation as input",
                        "previous_response_not_found",
                        "previous_response_id",
                    )
                self._turns.move_to_end(place)
                if self._folder is not None:
                    with suppress(OSError):  # its user has removed it
                        os.utime(self._file(self._folder, place))
                turns.append(turn)
                place = turn.previous
        return [item for turn in reversed(turns) for item in ITEMS.validate_json(turn.items)]

    def _add(self, id_: str, turn: _Turn) -> None:
        """Adds a turn, and removes others for which there is no more room."""
        self._turns[id_] = turn
        self._size += len(turn.items)
        while self._size > self._most:
            other, gone = self._turns.popitem(last=False)
            self._size -= len(gone.items)
            if self._folder is not None:
                with suppress(OSError):
                    self._file(self._folder, other).unlink()

    def _write(self, id_: str, turn: _Turn) -> None:
        """Writes the file of a turn; where that is impossible, it stays in memory alone."""
        if self._folder is None:
            return
        try:
            with replaced(self._file(self._folder, id_), private=True) as partial:
                partial.write_bytes(turn.content)
        except InputError as error:
            _log.warning("a response cannot be kept in %s: %s", self._folder, reason(error))

    def _file(self, folder: Path, id_: str) -> Path:
        return folder / f"{id_}{_SUFFIX}"


RESPONSES = ResponseStore()
"""The responses of this process."""
