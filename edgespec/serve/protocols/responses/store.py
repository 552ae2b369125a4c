"""Responses that were given, for requests that go on from one by its id."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.serve.protocols.responses.items import ITEMS, Item
from edgespec.serve.refusals import RequestError, shorten_value

_MOST = 64 << 20  # bytes of all that is kept


@dataclass(frozen=True)
class _Turn:
    """What a response added to a conversation, as JSON, and the response before it."""

    previous: str | None
    items: bytes


class ResponseStore:
    """Keeps the turns of conversations in memory; those that were not used for longest go first."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._turns = OrderedDict[str, _Turn]()
        self._size = 0
        self._changing = threading.Lock()

    def put(self, id_: str, previous: str | None, items: Sequence[Item]) -> None:
        """Keeps what was asked and answered behind a response, under the id of the new one."""
        turn = _Turn(previous, ITEMS.dump_json(list(items), exclude_none=True))
        with self._changing:
            self._turns[id_] = turn
            self._size += len(turn.items)
            while self._size > self._most:
                _, gone = self._turns.popitem(last=False)
                self._size -= len(gone.items)

    def conversation(self, id_: str) -> list[Item]:
        """Returns all items up to a response, with its own.

        Raises:
            RequestError: if it, or one before it, is not here.
        """
        turns = list[_Turn]()
        place: str | None = id_
        with self._changing:
            while place is not None:
                if (turn := self._turns.get(place)) is None:
                    raise RequestError(
                        400,
                        f"previous_response_id is {shorten_value(id_)}, which is not here, or not "
                        "any more: send the whole conversation as input",
                        "previous_response_not_found",
                        "previous_response_id",
                    )
                self._turns.move_to_end(place)
                turns.append(turn)
                place = turn.previous
        return [item for turn in reversed(turns) for item in ITEMS.validate_json(turn.items)]
