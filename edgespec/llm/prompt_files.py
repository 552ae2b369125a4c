"""Files of the prompt cache: written whole or not at all, sealed by hashes, within a budget."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from edgespec.bundle import Bundle
from edgespec.errors import InputError
from edgespec.llm.load.options import LoadOptions
from edgespec.runtime.arrays import Array
from edgespec.system.files import PRIVATE_FOLDER

VERSION = "1"
_KIND = "edgespec prompt"
_SUFFIX = ".prompt.safetensors"
_PARTIAL = ".prompt.partial"
_OWN = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}|.*{re.escape(_PARTIAL)}")
_STEP = 1_000_000  # ns by which a chain's next file counts as older

_log = logging.getLogger(__name__)


class DamagedError(Exception):
    """A file is missing, or is not what was written under its name."""


class PromptFiles:
    """Files by keys, in a folder that several processes may share.

    Files are removed in the order of their time of modification, which is that of their last use.
    Other files in the folder are left alone.

    Args:
        folder: the folder; created for its owner alone if it does not exist.
        budget: bytes that all files may take together.

    Raises:
        InputError: if the folder cannot be created.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder = folder
        self._budget = budget
        try:
            self._create()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise InputError(
                f"prompt_cache {folder} cannot be used ({why}): name a folder in a writable one"
            ) from error

    @classmethod
    def asked_for(cls, options: LoadOptions, bundle: Bundle) -> PromptFiles | None:
        """Returns the files of a user's options; None if they want no prompt cache.

        Raises:
            InputError: if the folder cannot be created, or the target has recurrent layers.
        """
        if options.prompt_cache is not None and bundle.target.recurrent:
            raise InputError(
                f"{bundle.path}: its target has recurrent layers, whose states a prompt cache does "
                "not hold: leave out prompt_cache (Session.save holds them)"
            )
        size = options.prompt_cache_size
        assert isinstance(size, int), "parsed by the options"
        return None if options.prompt_cache is None else cls(Path(options.prompt_cache), size)

    def has(self, key: str) -> bool:
        """Whether there is a file of this key; it may be damaged."""
        return self._path(key).exists()

    def read(self, key: str, wanted: Callable[[str], bool]) -> dict[str, Array]:
        """Reads those tensors of a file whose names are wanted, and checks their hashes.

        Raises:
            DamagedError: if the file is missing or damaged; it is removed, so that it can be
                written again.
        """
        path = self._path(key)
        try:
            with safe_open(path, "numpy") as file:
                seals = file.metadata() or {}
                names = [name for name in file.keys() if wanted(name)]  # noqa: SIM118
                tensors = {name: file.get_tensor(name) for name in names}
            right = {"version": VERSION, **seals_of(key, tensors)}
            if not right.items() <= seals.items():
                raise DamagedError("its content is not what was written")
        except FileNotFoundError as error:  # removed by another process, or by its user
            raise DamagedError("missing") from error
        except (OSError, SafetensorError, TypeError, DamagedError) as error:
            _log.warning("%s is damaged (%s): this part of a prompt is computed again", path, error)
            with suppress(OSError):
                path.unlink()
            raise DamagedError(str(error)) from error
        return tensors

    def write(self, chain: Sequence[str], tensors: Mapping[str, Array]) -> bool:
        """Writes the file of a chain's last key, after the least recently used ones gave way.

        Args:
            chain: keys of the files that it is of use with, which stay; its own is the last.
            tensors: arrays by name, contiguous.

        Returns:
            Whether the budget has room for it beside the rest of its chain.

        Raises:
            OSError: if it cannot be written.
        """
        path = self._path(chain[-1])
        facts = {"kind": _KIND, "version": VERSION, **seals_of(chain[-1], tensors)}
        data = save(dict(tensors), facts)
        self._create()
        if not self._make_room(len(data), {self._path(key).name for key in chain}):
            return False
        descriptor, partial = tempfile.mkstemp(_PARTIAL, dir=self.folder)  # for its owner alone
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(partial).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(partial).unlink()
            raise
        self.touch(chain)
        return True

    def touch(self, chain: Sequence[str]) -> None:
        """Marks files as used now. The first are the newest: the others are of no use without."""
        now = time.time_ns()
        for number, key in enumerate(chain):
            with suppress(OSError):  # removed meanwhile, or write-protected
                os.utime(self._path(key), ns=(now - number * _STEP,) * 2)

    def _make_room(self, size: int, kept: Collection[str]) -> bool:
        """Removes old files until there is room for this many bytes; returns whether there is."""
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if _OWN.fullmatch(entry.name):
                    with suppress(FileNotFoundError):
                        facts = entry.stat()
                        found.append((facts.st_mtime_ns, facts.st_size, entry))
        total = size + sum(each for _, each, _ in found)
        for _, each, entry in sorted(found, key=lambda file: file[0]):
            if total <= self._budget:
                break
            if entry.name not in kept:
                Path(entry.path).unlink(missing_ok=True)
                total -= each
        return total <= self._budget

    def _create(self) -> None:
        self.folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / (key + _SUFFIX)


def seals_of(key: str, tensors: Mapping[str, Array]) -> dict[str, str]:
    """Returns a hash of each tensor, and of where it belongs."""
    seals = {}
    for name, array in tensors.items():
        sealed = hashlib.sha256(f"{key} {name} {array.dtype} {array.shape}".encode())
        sealed.update(array.tobytes())
        seals[name] = sealed.hexdigest()
    return seals
