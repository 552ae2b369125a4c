"""Finds a checkpoint on this machine or on the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgespec.errors import ExportError
from edgespec.models.gguf.opening import parts
from edgespec.models.pooled import MODULES

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = ["*.safetensors", "*.json", "*.jinja"]
# Mistral's repositories contain all weights twice; subfolders contain other formats.
_UNWANTED = ["consolidated*", "*/*"]
_POOLING = ["*_Pooling/config.json"]  # of an embedding model, see `models/pooled.py`
# One file of a repository that has a model in many precisions, such as owner/name:q4/model.gguf.
_HUB_FILE = re.compile(r"([\w.-]+/[\w.-]+):([\w./ -]+\.gguf)")
_CACHED = re.compile(r"models--(.+?)--(.+)")


def resolve_checkpoint(source: str) -> Path:
    """Returns a checkpoint's folder or GGUF file, which is downloaded if `source` is on the Hub.

    Args:
        source: a local folder or GGUF file, a Hub id (owner/name), or a GGUF file of a repository
            (owner/name:file.gguf), of which all parts are downloaded if it was split.

    Raises:
        ExportError: if `source` is none of these, or cannot be downloaded.
    """
    local = Path(source)
    if local.is_dir() or local.is_file():
        return local
    file = _HUB_FILE.fullmatch(source)
    if file is not None:
        return _download_file(file[1], file[2])
    if not _HUB_ID.fullmatch(source):
        raise ExportError(
            f"{source}: no such folder or GGUF file, and not on the Hub (owner/name, or "
            "owner/name:file.gguf)"
        )
    folder = download(source, _WANTED, _UNWANTED)
    return download(source, _POOLING) if (folder / MODULES).is_file() else folder


def download(repository: str, wanted: Sequence[str], unwanted: Sequence[str] = ()) -> Path:
    """Downloads files of a Hub repository, and returns the folder that has them.

    Args:
        repository: its id, owner/name.
        wanted: patterns of the files.
        unwanted: patterns of those that are left out.

    Raises:
        ExportError: if that fails.
    """
    from huggingface_hub import snapshot_download

    with _failures(repository):
        return Path(
            snapshot_download(repository, allow_patterns=[*wanted], ignore_patterns=[*unwanted])
        )


def _download_file(repository: str, name: str) -> Path:
    """Downloads a GGUF file and those that belong to it; returns the first."""
    from huggingface_hub import hf_hub_download

    folder, _, file = name.rpartition("/")
    names = [f"{folder}/{part}" if folder else part for part in parts(file)]
    with _failures(f"{repository}:{name}"):
        files = [Path(hf_hub_download(repository, each)) for each in names]
        return files[0]


@contextmanager
def _failures(source: str) -> Iterator[None]:
    """Raises the errors of a download as those of an export."""
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError

    try:
        yield
    except GatedRepoError as error:
        raise ExportError(
            f"{source}: the Hub requires that you accept its licence first: accept it on the "
            "model's page, log in with `hf auth login`, and try again"
        ) from error
    except EntryNotFoundError as error:
        raise ExportError(
            f"{source}: the repository has no such file: see its list of files on the Hub"
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
    """Returns a checkpoint's name: that of its folder or file.

    The Hub's cache keeps `owner/name` in `models--owner--name/snapshots/<revision>`, of which a
    folder's name is `owner/name@revision` and a file's `owner/name@revision:file`.
    """
    file = path.name if path.is_file() else None  # a link in the Hub's cache, not to be resolved
    path = (path if file is None else path.parent).resolve()
    cached = _CACHED.fullmatch(path.parent.parent.name)
    if path.parent.name != "snapshots" or cached is None:
        return file or path.name
    name = f"{cached[1]}/{cached[2]}@{path.name}"
    return name if file is None else f"{name}:{file}"
