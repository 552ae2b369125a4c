"""Draft heads, in the form in which each peer reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.errors import EdgespecError, InputError
from peers import PeerError
from peers.rows import OURS

if TYPE_CHECKING:
    from pathlib import Path


def version_of(head: Path) -> list[str]:
    """Returns what tells a head from others, and from itself trained further.

    Raises:
        InputError: it cannot be read.
    """
    file = head / "model.safetensors" if head.is_dir() else head
    try:
        weights = file.stat()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}: give the folder of a head") from error
    return [head.name, str(weights.st_size), str(weights.st_mtime_ns)]


def head_of(name: str, head: Path, model: Path, folder: Path) -> tuple[Path, str | None]:
    """Returns a head as a peer reads it, and the form that others than edgespec are told.

    Args:
        name: the peer's; edgespec reads it as it is.
        head: folder of the head, or its GGUF file, which may say more than others read.
        model: GGUF file of its target.
        folder: where the file is kept that is made of the head.

    Raises:
        PeerError: others do not read such heads.
    """
    if name == OURS:
        return head, None
    from peers.head_file import form_of, write_head_file  # needs packages that nothing else does

    file = folder / f"{'-'.join([model.stem, *version_of(head)])}.gguf"
    if not file.exists():
        try:
            write_head_file(head, model, file)
        except EdgespecError as error:
            raise PeerError(str(error)) from error
    return file, form_of(file)
