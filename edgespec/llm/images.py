"""Pictures in conversations: what users give as parts, and the rows that the target reads of it."""

from __future__ import annotations

import base64
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import unquote_to_bytes

import numpy as np

from edgespec.bundle import ROWS, Bundle, Vision
from edgespec.errors import ContextLengthError, InputError, reason
from edgespec.runtime.arrays import Floats
from edgespec.runtime.kernels import library, missing_kernels
from edgespec.runtime.sequences.pictures import Pictures, in_grids
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.vision import (
    MOST_BYTES,
    Picture,
    cut_picture,
    looked_at,
    picture_text,
    require_pillow,
    rows_of,
    seen,
    upright,
)
from edgespec.system.jobs import PatientLock
from edgespec.system.shutdown import ENGINE_CALLS

if TYPE_CHECKING:
    from edgespec.runtime.sequences.model import Graph

SHOWN: Mapping[str, str] = {"type": "image"}
"""The part of a message in which a chat template writes the mark of a picture."""

_KINDS = ("image", "image_url")
_PLACES = ("image", "image_url", "url", "path")  # where a part may have its picture
_BASE64_URL = re.compile(r"\s*data:.*; *base64\s*\Z", re.IGNORECASE | re.DOTALL)
# and characters in which one is looked for
_SCHEMES = ("data:", "http:", "https:")
_SCHEME = 32
_SPACES = b"\t\n\f\r "
_MOST_KEPT = 64 << 20  # bytes of rows of pictures that may come again, as in each turn of a chat


def taken_out(
    messages: str | Sequence[Mapping[str, Any]],
) -> tuple[str | Sequence[Mapping[str, Any]], list[object]]:
    """Returns messages with `SHOWN` for each picture, and what users gave for these in order.

    Raises:
        InputError: if a message has one that is not the user's, or a part of that type has none.
    """
    given: list[object] = []
    if not _are_messages(messages):
        return messages, given  # a text, or what `for_template` refuses
    made: list[Mapping[str, Any]] = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list | tuple) else ()
        found = [each for each in parts if _is_picture(each)]
        if found and message.get("role") not in ("user", "tool"):
            raise InputError(f"a message of {message.get('role')} has an image: users show them")
        given += map(_given, found)
        shown = [SHOWN if _is_picture(each) else each for each in parts]
        made.append({**message, "content": shown} if found else message)
    return made, given


def _are_messages(messages: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        return False
    return all(isinstance(each, Mapping) for each in messages)


def _is_picture(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _KINDS


def _given(part: Mapping[str, Any]) -> object:
    """Returns what a part has as its picture."""
    found = next((part[name] for name in _PLACES if part.get(name) is not None), None)
    return found.get("url") if isinstance(found, Mapping) else found


@dataclass(frozen=True)
class DataUrl:
    """A picture that a client of a server gives, who may name no file of this machine.

    Attributes:
        url: what `decode_data_url` takes, or refuses.
    """

    url: str


def decode_data_url(url: str) -> bytes:
    """Returns what a data URL holds, read as browsers do (WHATWG's Fetch standard).

    Raises:
        InputError: if it is another URL, not in base64, or damaged.
    """
    head, comma, data = url.partition(",")
    if not comma or not _BASE64_URL.match(head):
        raise InputError(
            f"an image is at {reason(repr(url), 60)}: nothing is fetched here, so give the file "
            "itself as data:image/png;base64,..."
        )
    return _from_base64(unquote_to_bytes(data) if "%" in data else data)


def _from_base64(data: str | bytes) -> bytes:
    """Returns what a text in base64 holds, by WHATWG's forgiving decoding.

    It may be broken into lines, and what fills its last four characters may be left out.

    Raises:
        InputError: if it is damaged, or too much for a picture.
    """
    raw = data if isinstance(data, bytes) else data.encode(errors="replace")
    code = raw.translate(None, _SPACES)
    if len(code) > MOST_BYTES * 4 // 3 + 4:
        raise InputError(f"an image has more than {MOST_BYTES / 1e6:.0f} MB: give a smaller one")
    if len(code) % 4 == 0:
        code = code.removesuffix(b"=").removesuffix(b"=")
    try:
        if b"=" in code:
            raise ValueError("there is a = within it")
        return base64.b64decode(code + b"=" * (-len(code) % 4), validate=True)
    except ValueError as error:
        raise InputError(f"an image is not in base64 ({reason(error)}): encode it again") from error


class Viewer:
    """Makes rows of pictures, for a target that reads them.

    Args:
        bundle: the bundle.
        tokenizer: its tokenizer.
        threads: number of threads of the tower.
        native: whether the target runs its native graph alone.
    """

    def __init__(
        self, bundle: Bundle, tokenizer: Tokenizer, threads: int, native: bool = True
    ) -> None:
        self._bundle = bundle
        self._threads = threads
        self._native = native
        self._tokenizer = tokenizer
        self._kept = OrderedDict[bytes, Floats]()  # by what pieces are; the last used one last
        self._opening = PatientLock()
        self._looking = PatientLock()

    def open(self, given: Sequence[object], most: int) -> list[Picture]:
        """Opens what users gave as pictures, one at a time, since one may take much memory.

        Args:
            given: pictures of Pillow, contents of files, data URLs, also as `DataUrl`, or paths.
            most: largest number of tokens in which they must have room.

        Raises:
            ContextLengthError: if there are too many.
            InputError: if the model reads none, or one cannot be opened.
        """
        if not given:
            return []
        vision = self._vision
        if len(given) * vision.fewest >= most:
            raise ContextLengthError(
                f"there are {len(given)} images of {vision.fewest} tokens at least, and the "
                f"context has {most}: leave some out"
            )
        require_pillow()
        found = []
        for each in given:
            with self._opening.held():
                found.append(_seen(each, vision))
        return found

    def close(self) -> None:
        """Frees what looks at pictures, and the rows that it has made."""
        self.__dict__.pop("_tower", None)
        self._kept.clear()

    def written_out(self, text: str, pictures: Sequence[Picture]) -> str:
        """Returns a text of the chat template with what stands there for each picture.

        Args:
            text: the text, or its beginning.
            pictures: those of the whole text.
        """
        if not pictures:
            return text
        vision = self._vision
        mark = self._text_of(vision.mark)
        first, *others = text.split(mark)
        places = [picture_text(each, vision, self._text_of) for each in pictures]
        places += [mark] * (len(others) - len(places))
        return first + "".join(f"{p}{t}" for p, t in zip(places, others, strict=False))

    def look(
        self, tokens: Sequence[int], pictures: Sequence[Picture]
    ) -> Callable[[], Pictures] | None:
        """Returns what makes what the target reads of pictures in a prompt; None without any.

        That may take seconds for each, and raises a DeviceError if the tower cannot be run.

        Raises:
            InputError: if the prompt has not as many tokens for rows as pictures have rows.
        """
        if not pictures:
            return None
        vision = self._vision
        places = np.flatnonzero(np.array(tokens) == vision.token)
        counts = [rows_of(each, vision) for each in pictures]
        count = sum(counts)
        marks = sum(each == vision.mark for each in tokens)
        if len(places) != count or marks != (count if vision.mark == vision.token else len(counts)):
            raise InputError(
                f"the chat template has room for {len(places)} rows of images, which have "
                f"{count}: leave {self._text_of(vision.mark)} out of texts, and use a template "
                "that shows images"
            )

        def looked() -> Pictures:
            with self._looking.held():
                rows = np.concatenate([self._rows(each) for each in pictures])
            turns = None
            if vision.grid is not None and vision.grid.sections is not None:
                turns = in_grids([each.grid for each in pictures])
            return Pictures(places, rows, tuple(counts) if vision.together else (), turns)

        return looked

    @property
    def _vision(self) -> Vision:
        target = self._bundle.target
        if target.vision is None:
            raise InputError(
                f"there is an image, and the model is a {target.architecture} of text alone: leave "
                "the image out, or use a model that reads images, such as Gemma 3 4B"
            )
        if target.vision.together and not self._native:
            raise InputError(
                "there is an image, whose rows see each other, which the CPU alone can compute: "
                "load the model with --device cpu"
            )
        return target.vision

    def _text_of(self, token: int) -> str:
        """Returns the text of a token of images."""
        if text := self._tokenizer.backend.id_to_token(token):
            return text
        raise InputError(
            f"the tokenizer has no token {token}, which stands for images: export the model again"
        )

    def _rows(self, picture: Picture) -> Floats:
        """Returns the rows of a picture, [n, hidden_size] float32."""
        vision = self._vision
        shown = blake2b()
        for piece in picture.pieces:
            shown.update(repr(piece.shape).encode())
            shown.update(piece.tobytes())
        key = shown.digest()
        if key not in self._kept:
            made = list[Floats]()
            for piece in picture.pieces:
                with ENGINE_CALLS:
                    made.append(self._tower(looked_at(piece, vision))[ROWS])
            rows = np.concatenate(made)
            if len(rows) != rows_of(picture, vision):
                raise InputError(
                    f"an image of {rows_of(picture, vision)} tokens has {len(rows)} rows, so that "
                    "the bundle contradicts itself: export the model again"
                )
            self._kept[key] = rows
            while len(self._kept) > 1 and sum(r.nbytes for r in self._kept.values()) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    @cached_property
    def _tower(self) -> Graph:
        from edgespec.runtime.engines.native import NativeGraph  # loads ONNX Runtime

        operators = library()
        if operators is None:
            raise InputError(f"images need edgespec's operators: {missing_kernels()}")
        return NativeGraph(self._bundle.path / self._vision.graph, operators, self._threads)


def _seen(given: object, vision: Vision) -> Picture:
    from PIL.Image import Image

    if isinstance(given, Image):
        return cut_picture(upright(given), vision)
    if isinstance(given, DataUrl):
        return seen(decode_data_url(given.url), vision)
    if isinstance(given, str) and given[:_SCHEME].lstrip().lower().startswith(_SCHEMES):
        return seen(decode_data_url(given), vision)
    if isinstance(given, bytes | bytearray | memoryview):
        return seen(bytes(given), vision)
    if not isinstance(given, str | Path):
        raise InputError(
            f"an image is {reason(repr(given), 60)}: give a path, bytes, a data URL, or a picture "
            "of Pillow"
        )
    path = Path(given)
    try:
        if not path.is_file():
            raise InputError(f"an image is {reason(repr(given), 80)}, which is no file")
        if path.stat().st_size > MOST_BYTES:
            raise InputError(
                f"{path} has more than {MOST_BYTES / 1e6:.0f} MB: give a smaller image"
            )
        return seen(path.read_bytes(), vision)
    except (OSError, ValueError) as error:
        raise InputError(f"the image {reason(repr(given), 80)} cannot be read ({error})") from error
