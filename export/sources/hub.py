"""Finds a checkpoint in a local folder or on the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from edgespec.errors import ExportError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = ["*.safetensors", "*.json", "*.jinja"]
# Mistral's repositories contain all weights twice; subfolders contain other formats.
_UNWANTED = ["consolidated*", "*/*"]
_CACHED = re.compile(r"models--(.+?)--(.+)")


def resolve_checkpoint(source: str) -> Path:
    """Returns the folder of a checkpoint; downloads it if `source` is a Hub id and not a folder.

    Raises:
        ExportError: if `source` is neither, or cannot be downloaded.
    """
    folder = Path(source)
    if folder.is_dir():
        return folder
    if not _HUB_ID.fullmatch(source):
        raise ExportError(f"{source}: no such folder, and not a Hub id (owner/name)")
    return download(source, _WANTED, _UNWANTED)


def download(source: str, wanted: Sequence[str], unwanted: Sequence[str] = ()) -> Path:
    """Downloads files of a Hub repository, and returns the folder that has them.

    Args:
        source: the repository's id, owner/name.
        wanted: patterns of the files.
        unwanted: patterns of those that are left out.

    Raises:
        ExportError: if that fails.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError

    try:
        return Path(
            snapshot_download(source, allow_patterns=[*wanted], ignore_patterns=[*unwanted])
        )
    except GatedRepoError as error:
        raise ExportError(
            f"{source}: the Hub requires that you accept its licence first: accept it on the "
            "model's page, log in with `hf auth login`, and try again"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # its type depends on the HTTP library that the Hub client uses
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ExportError(
            f"{source}: it is not a local folder, and downloading it from the Hub failed "
            f"({reason}): check the name and the connection, or give a downloaded folder"
        ) from error


def source_name(path: Path) -> str:
    """Returns a checkpoint's name: that of its folder, or in the Hub's cache the id and revision.

    The Hub's cache keeps `owner/name` in `models--owner--name/snapshots/<revision>`.
    """
    path = path.resolve()
    cached = _CACHED.fullmatch(path.parent.parent.name)
    if path.parent.name != "snapshots" or cached is None:
        return path.name
    return f"{cached[1]}/{cached[2]}@{path.name}"
