"""Finds a checkpoint on this machine or on the Hugging Face Hub."""

from __future__ import annotations

import errno
import inspect
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import gaierror
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from edgespec.errors import ExportError, first_line
from edgespec.models.formats.tiktoken_file import TIKTOKEN_FILE
from edgespec.models.named import (
    HUB_FILE,
    HUB_ID,
    HUB_PRECISION,
    SUFFIX,
    hub_name,
    parts,
    precisions,
    tower_name,
)
from edgespec.models.pooled import MODULES

if TYPE_CHECKING:
    from edgespec.export.role import Progress

_WANTED = ["*.safetensors", "*.json", "*.jinja", TIKTOKEN_FILE]
# Mistral's repositories contain all weights twice; subfolders contain other formats.
_UNWANTED = ["consolidated*", "*/*"]
# Of what follows the transformer in sentence-transformers' files, see `models/pooled.py`.
_STEPS = [
    "*_Pooling/config.json",
    "*_Dense/config.json",
    "*_Dense/model.safetensors",
    "*_LogitScore/config.json",
]
_PATIENCE = 10.0  # seconds until a repository has told its files
_UNREACHABLE = {errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH}
_CACHED = re.compile(r"models--(.+?)--(.+)")


# Which file is taken of a repository of GGUF files: the nearest to Q4_K_M that is there.
_NEAREST = (
    "Q4_K_M", "Q4_K_L", "Q4_K_XL", "Q4_K_S", "Q4_K", "MXFP4", "NVFP4", "Q5_K_S", "Q5_K_M", "Q4_1",
    "IQ4_NL", "IQ4_XS", "Q4_0", "Q5_1", "Q5_0", "Q6_K", "Q6_K_L", "Q8_0", "Q3_K_XL", "Q3_K_L",
    "Q3_K_M", "Q3_K_S", "IQ3_M", "IQ3_S", "IQ3_XS", "BF16", "F16", "F32", "Q2_K_XL", "Q2_K_L",
    "Q2_K", "IQ3_XXS", "IQ2_M", "IQ2_S", "IQ2_XS", "IQ2_XXS", "TQ2_0", "TQ1_0", "IQ1_M", "IQ1_S",
    "Q1_0",
)  # fmt: skip


def resolve_checkpoint(source: str, progress: Progress | None = None) -> Path:
    """Returns a checkpoint's folder or GGUF file, which is downloaded if `source` is on the Hub.

    Args:
        source: a local folder or GGUF file, a Hub id (owner/name), or a GGUF file of a repository
            (owner/name:file.gguf, or by its precision, owner/name:Q4_K_M), of which all parts are
            downloaded if it was split, and what reads pictures; or an address of either. Of a
            repository of GGUF files alone, Q4_K_M is taken, or what is nearest to it.
        progress: called with the bytes that were downloaded; None: the Hub's own bars show it.

    Raises:
        ExportError: if `source` is none of these, or cannot be downloaded.
    """
    local = Path(source)
    if local.is_dir() or local.is_file():
        return local
    source = hub_name(source)
    how = _told(progress)
    by_precision = HUB_PRECISION.fullmatch(source)
    if by_precision is not None:
        repository, precision = by_precision.groups()
        listed = file_sizes(repository) or _names_in(download(repository, _WANTED, _UNWANTED, how))
        return _download_file(repository, _of_precision(repository, listed, precision), listed, how)
    file = HUB_FILE.fullmatch(source)
    if file is not None:
        return _download_file(file[1], file[2], _listing(file[1]), how)
    if not HUB_ID.fullmatch(source):
        raise ExportError(
            f"{source}: no such folder or GGUF file, and not on the Hub (owner/name, or "
            "owner/name:file.gguf)"
        )
    folder = download(source, _WANTED, _UNWANTED, how)
    if not any(folder.glob("*.safetensors")):
        listed = file_sizes(source) or _names_in(folder)
        if (chosen := _gguf_of(source, listed)) is not None:
            return _download_file(source, chosen, listed, how)
    return download(source, _STEPS, (), how) if (folder / MODULES).is_file() else folder


def download(
    repository: str,
    wanted: Sequence[str],
    unwanted: Sequence[str] = (),
    how: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Downloads files of a Hub repository, and returns the folder that has them.

    Args:
        repository: its id, owner/name.
        wanted: patterns of the files.
        unwanted: patterns of those that are left out.
        how: what the Hub's function is to be given besides.

    Raises:
        ExportError: if that fails.
    """
    from huggingface_hub import snapshot_download

    with _failures(repository):
        return Path(
            snapshot_download(
                repository, allow_patterns=[*wanted], ignore_patterns=[*unwanted], **how
            )
        )


def file_sizes(repository: str) -> dict[str, int | None]:
    """Returns the bytes of a repository's files, as far as they are told; without a network none.

    It is asked once: `list_repo_files` would try for 23 seconds where nobody answers.
    """
    return _listing(repository) or {}


def _listing(repository: str) -> dict[str, int | None] | None:
    """Returns the same; None where nobody is at the Hub's address, so that more tries are vain."""
    from huggingface_hub import model_info

    try:
        told = model_info(repository, timeout=_PATIENCE, files_metadata=True)
    except MemoryError:
        raise
    except Exception as error:  # its type depends on the HTTP library, that of its cause does not
        cause: BaseException | None = error
        while cause is not None and not _is_without_network(cause):
            cause = cause.__cause__ or cause.__context__
        return {} if cause is None else None
    return {each.rfilename: each.size for each in told.siblings or ()}


def _is_without_network(error: BaseException) -> bool:
    """Whether an error says that an address is not known, has no way to it, or nobody there."""
    unreachable = isinstance(error, OSError) and error.errno in _UNREACHABLE
    return unreachable or isinstance(error, gaierror | ConnectionRefusedError)


def _names_in(folder: Path) -> list[str]:
    return [each.relative_to(folder).as_posix() for each in folder.rglob("*")]


def _of_precision(repository: str, files: Collection[str], wanted: str) -> str:
    """Returns the file of a repository that has a precision.

    Raises:
        ExportError: if there is none.
    """
    found = {name: precisions(name) for name in files}
    fitting = [name for name, kinds in found.items() if wanted.upper() in kinds]
    if not fitting:
        known = ", ".join(sorted({each for kinds in found.values() for each in kinds}))
        raise ExportError(
            f"{repository} has no GGUF file in {wanted}: "
            + (f"it has {known}" if known else f"leave out :{wanted}")
        )
    return min(fitting, key=lambda name: (name.count("/"), name))


def _gguf_of(repository: str, files: Collection[str]) -> str | None:
    """Returns the file to take of a repository without a checkpoint; None if it has no GGUF files.

    Args:
        repository: its id.
        files: names of its files.

    Raises:
        ExportError: if its GGUF files have names that tell no known precision.
    """
    found = [each for each in files if each.lower().endswith(SUFFIX)]
    ranks = dict[str, tuple[int, int, str]]()
    for name in found:
        known = [_NEAREST.index(each) for each in precisions(name) if each in _NEAREST]
        if known:
            ranks[name] = known[-1], name.count("/"), name
    if found and not ranks:
        raise ExportError(
            f"{repository}: no file's name tells its precision, such as {_NEAREST[0]}: name one, "
            f"as in {repository}:{found[0]}"
        )
    return min(ranks, key=ranks.__getitem__, default=None)


def _told(progress: Progress | None) -> dict[str, Any]:
    """Returns what has the Hub's functions tell the bytes that they download."""
    from huggingface_hub import hf_hub_download

    # Before 1.0 it had no such option.
    if progress is None or "tqdm_class" not in inspect.signature(hf_hub_download).parameters:
        return {}
    return {"tqdm_class": _telling(progress)}


def _telling(progress: Progress) -> type:
    """Returns a class of bars that show nothing and tell their bytes."""
    from tqdm.auto import tqdm

    bars = dict[int, tuple[float, float]]()  # one or more for a repository, which tell the same

    class Told(tqdm):  # type: ignore[misc] # has no types
        def __init__(self, *given: Any, **how: Any) -> None:
            super().__init__(*given, **{**how, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> Any:
            drawn = super().update(n)
            if self.unit == "B" and self.total:
                bars[id(self)] = self.n, self.total
                done, total = map(max, zip(*bars.values(), strict=True))
                progress("download", int(done), int(total))
            return drawn

    return Told


def _download_file(
    repository: str, name: str, listed: Collection[str] | None, how: Mapping[str, Any]
) -> Path:
    """Downloads a GGUF file and those of the repository that belong to it; returns the first.

    Where nothing can be `listed`, it is looked for on this machine alone.
    """
    from huggingface_hub import hf_hub_download

    if listed is None:  # else it would be tried for 23 seconds
        how = {**how, "local_files_only": True}
    folder, _, file = name.rpartition("/")
    before = f"{folder}/" if folder else ""
    beside = (each.removeprefix(before) for each in listed or () if each.startswith(before))
    tower = tower_name(file, (each for each in beside if "/" not in each))
    names = [before + each for each in (*parts(file), *([tower] if tower else []))]
    with _failures(f"{repository}:{name}"):
        files = [Path(hf_hub_download(repository, each, **how)) for each in names]
        return files[0]


@contextmanager
def _failures(source: str) -> Iterator[None]:
    """Raises the errors of a download as those of an export."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise ExportError(
            f"{source}: the Hub requires that you accept its licence first: accept it on the "
            "model's page, log in with `hf auth login`, and try again"
        ) from error
    except LocalEntryNotFoundError as error:  # also an EntryNotFoundError
        raise ExportError(
            f"{source}: it was not downloaded yet, and the Hub cannot be reached: connect to the "
            "network, or give a downloaded file or folder"
        ) from error
    except RepositoryNotFoundError as error:
        raise ExportError(
            f"{source}: the Hub has no such repository, or it is private: check the name, or log "
            "in with `hf auth login`"
        ) from error
    except EntryNotFoundError as error:
        raise ExportError(
            f"{source}: the repository has no such file: see its list of files on the Hub"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # its type depends on the HTTP library that the Hub client uses
        raise ExportError(
            f"{source}: it is not a local folder, and downloading it from the Hub failed "
            f"({first_line(error)}): check the name and the connection, or give a downloaded folder"
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
