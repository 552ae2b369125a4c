"""The bundles that were made of models, in the user's cache folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from edgespec import bundle as bundles
from edgespec.errors import BundleError, InputError
from edgespec.system import records
from edgespec.system.cachedir import cache_folder
from edgespec.system.files import replaced

RECORD = "made.json"
_REMOVED = ".removed"
_SEEN = 15  # earlier identities that are kept
_NAME = re.compile(r"\w[\w.+-]*")


@dataclass(frozen=True)
class Record:
    """What is known of a bundle that was made, kept in its folder.

    Attributes:
        target: what the target was made from: a path, or a name on the Hub.
        draft: likewise its draft model; empty if it was made without one.
        content: a hash of all that the bundle follows from.
        seen: hashes of paths, sizes and times of files that have this content.
        vocabulary: a hash of the tokenizer's vocabulary, see `fitting`.
        called: the name of the catalogue that it came by; empty if it came by another one.
    """

    target: str
    draft: str
    content: str
    seen: tuple[str, ...]
    vocabulary: str = ""
    called: str = ""


@dataclass(frozen=True)
class StoredBundle:
    """A bundle in the store; its folder's name is what users call it by.

    Attributes:
        path: its folder.
        record: what it was made from.
    """

    path: Path
    record: Record

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(each.stat().st_size for each in self.path.iterdir())


class BundleStore:
    """All bundles that were made. Whoever changes it holds its lock, which ends with the process.

    A bundle comes to be by a rename, with its record in it, so that none is ever found half made.
    Names that begin with a point are folders of processes that were killed.

    Raises:
        InputError: if there is no cache folder.
    """

    def __init__(self) -> None:
        folder = cache_folder("models")
        if folder is None:
            raise InputError("there is no cache folder: set EDGESPEC_CACHE to a writable one")
        self.folder = folder

    def made(self) -> Mapping[str, StoredBundle]:
        """Returns all bundles by name."""
        found = {}
        for folder in sorted(self.folder.iterdir()):
            if not folder.name.startswith(".") and (record := read_record(folder / RECORD)):
                found[folder.name] = StoredBundle(folder, record)
        return found

    def seen(self, identity: str) -> StoredBundle | None:
        """Returns the bundle of files of this identity, if there is one that can be used."""
        found = (each for each in self.made().values() if identity in each.record.seen)
        return next(filter(_usable, found), None)

    def of_content(self, content: str) -> StoredBundle | None:
        """Returns the bundle of this content, if there is one that can be used."""
        found = (each for each in self.made().values() if each.record.content == content)
        return next(filter(_usable, found), None)

    @contextmanager
    def changing(self, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Holds the lock, and removes first what killed processes have left.

        Args:
            waiting: called if another process holds it, before that one is waited for.
        """
        from filelock import FileLock, Timeout  # loads asyncio, and is needed only here

        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waiting()
            lock.acquire()
        try:
            for each in self.folder.glob(".*/"):
                shutil.rmtree(each, ignore_errors=True)
            yield
        finally:
            lock.release()

    def also(self, made: StoredBundle, identity: str) -> StoredBundle:
        """Notes another identity of a bundle, with the lock held."""
        return self._write(made, replace(made.record, seen=(*made.record.seen[-_SEEN:], identity)))

    def _write(self, made: StoredBundle, record: Record) -> StoredBundle:
        with replaced(made.path / RECORD) as file:
            write_record(file, record)
        return StoredBundle(made.path, record)

    def rename(self, old: str, new: str) -> None:
        """Gives a bundle another name, in place of the one that it came by, too.

        Raises:
            InputError: if there is none, or the name is taken or is no name.
        """
        if not _NAME.fullmatch(new) or new.lower().endswith(".gguf"):
            raise InputError(
                f"{new!r} cannot be a model's name: give letters, digits, and any of . + - _ "
                "behind the first"
            )
        with self.changing():
            made = self.named(old)
            if (self.folder / new).exists():
                raise InputError(f"there is a model {new!r} already: choose another name")
            self._write(made, replace(made.record, called=""))
            made.path.rename(self.folder / new)

    def remove(self, *names: str) -> None:
        """Removes bundles; none, if one of them does not exist.

        Raises:
            InputError: if there is none of such a name.
        """
        with self.changing():
            for made in [self.named(each) for each in names]:
                self.discard(made)

    def discard(self, made: StoredBundle) -> None:
        """Removes a bundle, with the lock held."""
        gone = made.path.rename(self.folder / f"{_REMOVED}-{made.path.name}")
        shutil.rmtree(gone, ignore_errors=True)  # what is left goes with the next change

    def named(self, name: str) -> StoredBundle:
        """Returns the bundle of this name, or the one that came by it.

        Raises:
            InputError: if there is none.
        """
        made = self.made()
        called = {each.record.called: each for each in made.values() if each.record.called}
        found = made.get(name, called.get(name.lower()))
        if found is None:
            known = ", ".join(made) or "none yet"
            raise InputError(f"there is no model {name!r} in {self.folder}, which has {known}")
        return found

    def free_name(self, wanted: str) -> str:
        """Returns a name that no bundle has, like the one that is wanted."""
        name = re.sub(r"[^\w.+-]+", "-", wanted).strip(".+-").lower() or "model"
        numbers = iter(range(2, 1 << 30))
        free = name
        while (self.folder / free).exists():
            free = f"{name}-{next(numbers)}"
        return free


def write_record(file: Path, record: Record) -> None:
    """Writes the record of a bundle."""
    file.write_text(json.dumps(records.encode(record)), encoding="utf-8")


def read_record(file: Path) -> Record | None:
    """Returns a record; None if there is none that this version reads."""
    try:
        return records.decode(Record, json.loads(file.read_text(encoding="utf-8")), "record")
    except (OSError, ValueError, RecursionError):
        return None


def _usable(made: StoredBundle) -> bool:
    try:
        bundles.load(made.path)
    except BundleError:
        return False
    return True
