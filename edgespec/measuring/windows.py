"""The windows in which a text is read to be evaluated."""

from __future__ import annotations

from dataclasses import dataclass

from edgespec.errors import InputError


@dataclass(frozen=True)
class Window:
    """A part of a text: tokens `start` to `stop` are read, those from `first` on are scored."""

    start: int
    first: int
    stop: int


def require_stride(stride: int, room: int, last: int | None) -> None:
    """Checks the distance of windows and the number of tokens that each one scores.

    Args:
        stride: number of tokens from one window's start to the next one's.
        room: number of the text's tokens in a window.
        last: see `endings`; None: windows of `windows`.

    Raises:
        InputError: if either is out of range.
    """
    if last is None:
        if not 1 <= stride <= room:
            raise InputError(f"stride is {stride}: give 1 to {room}, the tokens in a window")
    elif not 1 <= last <= room:
        raise InputError(f"last is {last}: give 1 to {room}, the tokens in a window")
    elif stride < last:
        raise InputError(
            f"stride is {stride}: give at least {last}, the tokens that each window scores"
        )


def windows(tokens: int, room: int, stride: int, begins: bool) -> list[Window]:
    """Returns windows that score each token of a text once, in order.

    Args:
        tokens: number of tokens in the text.
        room: number of the text's tokens in a window.
        stride: number of tokens from one window's start to the next one's, at most `room`.
        begins: whether each window starts with an extra beginning-of-text token. If not, a
            window's first token has no context, and is not scored unless the window before did.
    """
    found, done = list[Window](), 0
    for start in range(0, tokens, stride):
        stop = min(start + room, tokens)
        first = max(done, start + (0 if begins else 1))
        if first < stop:
            found.append(Window(start, first, stop))
        done = stop
        if stop == tokens:
            break
    return found


def endings(tokens: int, room: int, stride: int, last: int, begins: bool) -> list[Window]:
    """Returns whole windows that score their last tokens only, in order.

    What is left of the text behind the last whole window is not read.

    Args:
        tokens: number of tokens in the text, at least `room`.
        room: see `windows`.
        stride: see `windows`; at least `last`, and perhaps more than `room`.
        last: number of tokens that each window scores, at most `room`.
        begins: see `windows`.
    """
    ahead = max(room - last, 0 if begins else 1)
    starts = range(0, tokens - room + 1, stride)
    return [Window(start, start + ahead, start + room) for start in starts]
