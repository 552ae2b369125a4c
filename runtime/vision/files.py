"""Files of pictures, opened in another process: a few bytes may ask for any time and memory."""

from __future__ import annotations

import io
import json
import math
import re
import warnings
from typing import TYPE_CHECKING

import numpy as np

from edgespec.bundle import Vision
from edgespec.errors import InputError, reason
from edgespec.runtime.vision.colours import in_colours, require_size
from edgespec.runtime.vision.pieces import Picture, cut_picture
from edgespec.system import records
from edgespec.system.jobs import JobError, JobLimits, Why, Worker, serve

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_BYTES = 32 << 20
"""Bytes of a file."""

_LIMITS = JobLimits(seconds=5, megabytes=1000, patience=20)
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
# of a JPEG file: passes over it, and pixels of all of them
_SCANS = 100
_SCANNED = 10**9
_SCAN = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")  # a mark of what is no data of pixels

_ENDED: dict[Why, str] = {
    "time": f"it takes longer than {_LIMITS.seconds} s to open: give a smaller one",
    "memory": f"it takes more than {_LIMITS.megabytes} MB to open: give a smaller one",
    "crash": f"it is damaged: give a whole file of {', '.join(_FORMATS)}",
}


def open_picture(content: bytes) -> Image:
    """Opens the content of a file; of a moving picture, the first one.

    Returns:
        It in colours and upright; see `colours.upright`.

    Raises:
        InputError: if it is no picture, damaged, too large, or takes too long.
    """
    from PIL import Image

    return Image.fromarray(_looked_at(content, None).pieces[0])


def seen(content: bytes, vision: Vision) -> Picture:
    """Returns what a model sees of the content of a file; see `cut`.

    Raises:
        InputError: as `open_picture`.
    """
    return _looked_at(content, vision)


def _looked_at(content: bytes, vision: Vision | None) -> Picture:
    if len(content) > MOST_BYTES:
        raise InputError(
            f"a picture has {len(content) / 1e6:.0f} MB: give one of {MOST_BYTES / 1e6:.0f} at most"
        )
    wish = json.dumps(None if vision is None else records.encode(vision)).encode()
    try:
        head, _, pixels = _WORKER.run(wish + b"\n" + content).partition(b"\n")
    except JobError as error:
        raise InputError(f"a picture cannot be read: {_ENDED[error.why]}") from error
    told = json.loads(head)
    rows, columns = told["grid"]
    sizes = [math.prod(shape) for shape in told["shapes"]]
    parts = np.split(np.frombuffer(pixels, np.uint8), np.cumsum(sizes)[:-1])
    shaped = (part.reshape(shape) for part, shape in zip(parts, told["shapes"], strict=True))
    return Picture((rows, columns), tuple(shaped))


# What follows runs in the child.


def _decoded(content: bytes) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes, which are looked at here
            picture = Image.open(io.BytesIO(content), formats=_FORMATS)
        require_size(picture)
        if picture.format in ("JPEG", "MPO"):
            _require_scans(content, picture.width * picture.height)
        return in_colours(picture)
    except (InputError, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise InputError(f"a picture is too large ({reason(error)}): give a smaller one") from error
    except UnidentifiedImageError as error:
        raise InputError(
            f"a picture cannot be read (it is of no known format): give {', '.join(_FORMATS)}"
        ) from error
    except Exception as error:  # decoders of damaged files raise anything
        raise InputError(
            f"a picture cannot be read ({reason(error)}): give a whole file of "
            f"{', '.join(_FORMATS)}"
        ) from error


def _require_scans(content: bytes, pixels: int) -> None:
    """Checks how often a JPEG file goes over its pixels, which may take no more than some bytes."""
    most = min(_SCANS, _SCANNED // pixels)
    place = 2
    scans = 0
    while (mark := _SCAN.search(content, place)) is not None and mark[1] != b"\xd9":
        scans += mark[1] == b"\xda"
        if scans > most:
            raise InputError(
                f"a picture of {pixels} pixels has more than {most} scans: save it again, as PNG "
                "or as a JPEG that is not progressive"
            )
        place = mark.end()
        if mark[1] not in b"\x01\xd8":  # which have no length
            place += int.from_bytes(content[place : place + 2])


def _do(job: bytes) -> bytes:
    wish, _, content = job.partition(b"\n")
    told = json.loads(wish)
    picture = _decoded(content)
    if told is None:
        made = Picture((0, 0), (np.asarray(picture),))
    else:
        made = cut_picture(picture, records.decode(Vision, told, "vision"))
    head = {"grid": made.grid, "shapes": [each.shape for each in made.pieces]}
    pixels = b"".join(each.tobytes() for each in made.pieces)
    return json.dumps(head).encode() + b"\n" + pixels


def main() -> None:
    """Opens pictures until nobody asks for more."""
    from PIL import Image, WebPImagePlugin  # noqa: F401 - once, before the processes of jobs

    Image.preinit()
    serve(_do, _LIMITS)


_WORKER = Worker(__name__, _LIMITS)
