"""Results of tools beside the calls that they answer, as templates that show no ids need them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

Message = Mapping[str, Any]

_CALLS = "calls"
_RESULTS = "results"
_OTHERS = "others"
_ANY = ("any", "")


def bind_results(messages: Sequence[Message]) -> list[Message]:
    """Returns messages with results of tools in the order of their calls, and with their names.

    A result belongs to the call whose id it has. Without an id it belongs to the first call of the
    same tool that has no result yet, or of any tool if it names none.

    Args:
        messages: messages, whose calls have functions with names.
    """
    names: dict[str, str] = {}  # of functions, by the ids of calls
    waiting = _OpenCalls([])
    made: list[Message] = []
    for kind, group in groupby(messages, _kind):
        found = list(group)
        if kind == _RESULTS:
            made += waiting.in_order(found, names)
            continue
        if kind == _CALLS:
            calls = [call for message in found for call in message["tool_calls"]]
            names |= {_key(call.get("id")): call["function"]["name"] for call in calls}
            waiting = _OpenCalls(calls)
        made += found
    return made


def _kind(message: Message) -> str:
    if message.get("role") == "tool":
        return _RESULTS
    return _CALLS if message.get("tool_calls") else _OTHERS


def _key(given: object) -> str:
    return repr(given)  # whatever it is


class _OpenCalls:
    """Calls that have no result yet.

    Args:
        calls: calls that came together.
    """

    def __init__(self, calls: Sequence[Mapping[str, Any]]) -> None:
        self._names = [str(call["function"]["name"]) for call in calls]
        self._answered = set[int]()
        self._places = defaultdict[tuple[str, str], deque[int]](deque)
        for place, call in enumerate(calls):
            for key in (("id", _key(call.get("id"))), ("name", self._names[place]), _ANY):
                self._places[key].append(place)

    def in_order(self, results: Sequence[Message], names: Mapping[str, str]) -> list[Message]:
        """Returns results in the order of their calls; behind them those of others, as they came.

        Args:
            results: messages of the role tool.
            names: names of functions by the ids of earlier calls.
        """
        made: list[tuple[int, int, Message]] = []
        # Those with an id choose first, so that none without takes their calls.
        for number, result in sorted(enumerate(results), key=lambda each: _has_no_id(each[1])):
            place = self._take(result)
            if place is None:
                name = names.get(_key(result.get("tool_call_id")))
                place = len(self._names)
            else:
                name = self._names[place]
            made.append((place, number, {"name": name, **result} if name else result))
        return [result for _, _, result in sorted(made, key=lambda each: each[:2])]

    def _take(self, result: Message) -> int | None:
        """Returns the place of the call that a result belongs to, which is answered by it."""
        keys = [("id", _key(result.get("tool_call_id"))), ("id", _key(None))]
        if _has_no_id(result):
            keys = [("name", str(result["name"]))] if result.get("name") else [_ANY]
        for key in keys:
            places = self._places[key]
            while places:
                place = places.popleft()
                if place not in self._answered:
                    self._answered.add(place)
                    return place
        return None


def _has_no_id(result: Message) -> bool:
    return result.get("tool_call_id") is None
