"""Text of PDF files, read in another process: they may ask for any time and memory."""

from __future__ import annotations

import io
import json
import logging
from importlib.util import find_spec
from typing import Any

from edgespec.errors import InputError, installing, reason
from edgespec.system.jobs import JobError, JobLimits, Why, Worker, serve

MOST_BYTES = 16 << 20
"""Bytes of a file."""

_LIMITS = JobLimits(seconds=10, megabytes=800, patience=30)
_MOST_TEXT = 1_000_000  # characters of a text; what follows is left out
_ENDED: dict[Why, str] = {
    "time": f"it takes longer than {_LIMITS.seconds} s: give some of its pages",
    "memory": f"it takes more than {_LIMITS.megabytes} MB: give some of its pages",
    "crash": "it is damaged: save it again",
}


def pdf_text(content: bytes) -> dict[str, Any]:
    """Reads the content of a PDF file.

    Returns:
        Its `text`, page behind page, the number of `pages`, and how many of them were `read`.

    Raises:
        InputError: if pypdf is not installed, or the file has no text, cannot be read, is too
            large or takes too long.
    """
    if find_spec("pypdf") is None:
        raise InputError(f"PDF files need pypdf, which is not installed: {installing('documents')}")
    if len(content) > MOST_BYTES:
        raise InputError(
            f"a PDF file has {len(content) >> 20} MiB: give one of {MOST_BYTES >> 20} at most"
        )
    try:
        found: dict[str, Any] = json.loads(_WORKER.run(content))
    except JobError as error:
        raise InputError(f"a PDF file cannot be read: {_ENDED[error.why]}") from error
    return found


# What follows runs in the child.


def _read(content: bytes) -> bytes:
    from pypdf import PdfReader
    from pypdf.errors import FileNotDecryptedError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it tells of each fault that it mends
    texts = list[str]()
    length = 0
    try:
        reader = PdfReader(io.BytesIO(content))
        pages = len(reader.pages)
        for page in reader.pages:
            texts.append(page.extract_text().strip())
            length += len(texts[-1])
            if length >= _MOST_TEXT:
                break
    except MemoryError:
        raise
    except FileNotDecryptedError as error:
        raise InputError("a PDF file needs a password: save it without one") from error
    except Exception as error:  # pypdf raises anything at damaged files
        raise InputError(
            f"a PDF file cannot be read ({reason(error)}): give one that a viewer shows"
        ) from error
    text = "\n\n".join(filter(None, texts))[:_MOST_TEXT]
    if not text:
        raise InputError("a PDF file has no text, perhaps only pictures of it: give its text")
    # Half of a pair of surrogates, which a damaged font may give, has no place in UTF-8.
    text = text.encode(errors="replace").decode()
    return json.dumps({"text": text, "pages": pages, "read": len(texts)}).encode()


def main() -> None:
    """Reads files until nobody asks for more."""
    import pypdf  # noqa: F401 - once, before the processes of jobs

    serve(_read, _LIMITS)


_WORKER = Worker(__name__, _LIMITS)
