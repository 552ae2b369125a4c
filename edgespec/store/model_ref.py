"""What a user names as a model: a path, or a name on the Hub, in the store or in the catalogue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST
from edgespec.errors import InputError, did_you_mean
from edgespec.models.named import (
    HUB_FILE,
    HUB_ID,
    HUB_PRECISION,
    SUFFIX,
    hub_name,
    parts,
    tower_beside,
)
from edgespec.store.catalogue import Catalogue, CatalogueEntry
from edgespec.store.store import BundleStore
from edgespec.system.cachedir import cache_folder
from edgespec.system.files import exists

if TYPE_CHECKING:
    from edgespec.export import Progress

# What a checkpoint's folder is read from; Mistral's have all weights twice.
_READ = ("*.safetensors", "*.json", "*.jinja", "*_Pooling/config.json")
_UNREAD = "consolidated"
_NEAR = 3  # names that are proposed instead of one that is not known


@dataclass(frozen=True)
class ModelRef:
    """A model that was asked for and is known to exist, unless it is on the Hub.

    Attributes:
        name: its path, or its name on the Hub or in the catalogue.
        path: its path; None: it is on the Hub.
        entries: what a name of the catalogue may mean, of which a file is not chosen yet.
        shadows: whether it is a file or folder here whose name another model in the store has.
    """

    name: str
    path: Path | None
    entries: tuple[CatalogueEntry, ...] = ()
    shadows: bool = False

    @property
    def is_bundle(self) -> bool:
        """Whether it is a bundle's folder."""
        return self.path is not None and (self.path / MANIFEST).is_file()

    @property
    def identity(self) -> str:
        """What tells it from others without reading it: of files, paths, sizes and times."""
        if self.entries:
            return f"catalogue: {self.name} {self.entries}"
        if self.path is None:
            return f"Hub: {self.name}"
        if self.is_bundle:
            return self.content()
        return "\n".join(
            f"{file.resolve()} {file.stat().st_size} {file.stat().st_mtime_ns}"
            for file in _files(self.path)
        )

    def content(self, progress: Progress = lambda stage, done, total: None) -> str:
        """Returns a hash of what it is; all files are read, but a bundle's.

        Args:
            progress: called with the number of bytes that were read.
        """
        assert self.path is not None
        if self.is_bundle:
            return bundles.load(self.path).digest
        done = 0
        total = sum(each.stat().st_size for each in _files(self.path))

        def read(size: int) -> None:
            nonlocal done
            done += size
            progress("reading", done, total)

        hashes = (f"{each.name} {bundles.sha256(each, read)}" for each in _files(self.path))
        if self.path.is_file():  # whose name says nothing
            hashes = (each.rpartition(" ")[2] for each in hashes)
        return sha256("\n".join(hashes).encode(errors="surrogatepass")).hexdigest()

    def fetched(self, progress: Progress | None = None) -> ModelRef:
        """Returns the same on this machine, downloaded from the Hub if need be.

        Args:
            progress: called with the number of bytes that were downloaded; None: the Hub's own
                bars show it.

        Raises:
            ExportError: if it cannot be downloaded.
        """
        from edgespec.export import resolve_checkpoint  # loads the onnx package

        if self.path is not None:
            return self
        return ModelRef(self.name, resolve_checkpoint(self.name, progress))

    @property
    def short_name(self) -> str:
        """A name to call it by."""
        last = re.split(r"[/\\:]", self.name.rstrip("/\\"))[-1]
        return re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", last, flags=re.IGNORECASE)


def looks_like_model(word: str) -> bool:
    """Whether a word is meant as a model rather than as a prompt.

    Such are what exists, the names in the store and in the catalogue, what ends in `.gguf`, and
    without spaces in it what has a slash.
    """
    if (word and exists(word)) or (word.lower().endswith(SUFFIX) and "\n" not in word):
        return True
    if re.search(r"\s", word):
        return False
    return _looks_like_path(word) or word in _names() or bool(Catalogue.read().named(word))


def _looks_like_path(word: str) -> bool:
    return "/" in word or "\\" in word or word.lower().endswith(SUFFIX)


def find_model(model: str | Path) -> ModelRef:
    """Finds a model by what a user calls it.

    Raises:
        InputError: if there is none, or it is a folder that holds no model.
    """
    word = str(model)
    if word and exists(word):
        path = Path(word).absolute()
        return ModelRef(str(path), path, shadows=_shadows(word, path))
    if isinstance(model, str) and word in _names():
        made = BundleStore().named(model)
        return ModelRef(str(made.path), made.path)
    named = hub_name(word) if isinstance(model, str) else ""
    if any(each.fullmatch(named) for each in (HUB_ID, HUB_FILE, HUB_PRECISION)):
        return ModelRef(named, None)
    if _looks_like_path(word):
        raise InputError(
            f"there is no model '{word}': no such file or folder is there, and names on the Hub "
            "are owner/name, owner/name:FILE.gguf or owner/name:Q4_K_M"
        )
    catalogue = Catalogue.read()
    if isinstance(model, str) and (entries := catalogue.named(word)):
        return ModelRef(word.lower(), None, tuple(entries))
    near = did_you_mean(word, [*_names(), *catalogue.names], _NEAR)
    raise InputError(
        f"there is no model '{word}': it is no file or folder, and neither `edgespec models` nor "
        f"the catalogue has such a name{near}: give a path, owner/name on the Hub, or a name that "
        "`edgespec search` lists"
    )


def _shadows(word: str, path: Path) -> bool:
    """Whether another model in the store has the name that a file or folder here has."""
    if _looks_like_path(word) or word not in _names():
        return False
    made = BundleStore().named(word)
    return path != made.path and str(path) != made.record.target


def _names() -> frozenset[str]:
    """The names in the store; without a cache folder, there are none."""
    return frozenset() if cache_folder("models") is None else frozenset(BundleStore().made())


def _files(path: Path) -> Iterator[Path]:
    """Yields the files of a checkpoint."""
    if path.is_file():
        yield from (path.with_name(each) for each in parts(path.name))
        if (tower := tower_beside(path)) is not None:
            yield tower
        return
    for pattern in _READ:
        for file in sorted(path.glob(pattern)):
            if not file.name.startswith(_UNREAD):
                yield file
