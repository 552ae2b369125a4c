"""The catalogue: names of models, and the files on the Hub that each of them means.

It is data, `catalogue.toml` beside this file, and a file of the user's own in the same form, whose
entries go before those of the same name.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from edgespec.errors import InputError
from edgespec.models.named import precisions
from edgespec.system import records
from edgespec.system.files import read_utf8
from edgespec.system.settings import settings_folder

OWN_VARIABLE = "EDGESPEC_CATALOGUE"
"""The environment variable that names the user's own file."""

CHAT, EMBEDDINGS, RANKINGS = "chat", "embeddings", "rankings"
KINDS = (CHAT, EMBEDDINGS, RANKINGS)
"""What models are for."""

_SHIPPED = Path(__file__).with_name("catalogue.toml")
_OWN = "models.toml"  # in the folder of settings


@dataclass(frozen=True)
class CatalogueVocabulary:
    """Tokens that models have in common, but for added ones.

    Attributes:
        size: number of tokens.
        hash: its `vocabulary_hash` (`fitting.py`), where that is known.
    """

    size: int
    hash: str = ""


@dataclass(frozen=True)
class ModelFile:
    """A file with a model in one precision.

    Attributes:
        file: its name in the repository, that of the first part if it was split.
        size: bytes of all its parts.
    """

    file: str
    size: int

    @property
    def precision(self) -> str:
        """Its precision, as its name tells it; empty if it tells none."""
        return next(reversed(precisions(self.file)), "")


@dataclass(frozen=True)
class CatalogueEntry:
    """A model of the catalogue.

    Attributes:
        name: what users call it: family:size.
        repository: its repository on the Hub.
        files: its files; the first one is taken unless it does not fit or another is asked for.
        kind: what it is for, one of `KINDS`.
        family: its `model_type`.
        licence: the licence's name.
        parameters: number of weights; 0: not known.
        active: number of weights that a token reads; 0: all.
        vocabulary: name of its vocabulary; empty: not known.
        context: tokens that it was trained for.
        cache: bytes of keys and values of a token, in 16 bits.
        state: bytes of recurrent states, as a plan has them for one text.
        tower: bytes of the file that reads pictures, which is fetched with it; 0: there is none.
        head: what kind of head for drafting its files hold; empty: none.
        heads: repositories of heads that others trained for it, which `--draft` takes.
        draft: name of the entry that drafts for it; empty: none.
        proposed: whether it is among those that `edgespec chat` proposes.
    """

    name: str
    repository: str
    files: tuple[ModelFile, ...]
    kind: str = CHAT
    family: str = ""
    licence: str = ""
    parameters: int = 0
    active: int = 0
    vocabulary: str = ""
    context: int = 0
    cache: int = 0
    state: int = 0
    tower: int = 0
    head: str = ""
    heads: tuple[str, ...] = ()
    draft: str = ""
    proposed: bool = False

    @property
    def series(self) -> str:
        """The part of its name that other sizes have, too."""
        return self.name.partition(":")[0]


@dataclass(frozen=True)
class Catalogue:
    """All models that have names.

    Attributes:
        vocabularies: vocabularies by name.
        models: entries by name.
    """

    vocabularies: dict[str, CatalogueVocabulary]
    models: dict[str, CatalogueEntry]

    @classmethod
    def read(cls) -> Catalogue:
        """Reads the catalogue, with the user's own entries.

        Raises:
            InputError: if the user's file cannot be read, or has something else.
        """
        shipped = _shipped()
        file = own_file()
        if file is None:
            return shipped
        own = _read(file)
        return cls(shipped.vocabularies | own.vocabularies, shipped.models | own.models)

    def named(self, word: str) -> Sequence[CatalogueEntry]:
        """Returns the entries that a name may mean; none if there is no such name.

        That is one for family:size, and for family:size-precision with that file alone; for a
        family all of its sizes.
        """
        name = word.lower().removesuffix(":latest")
        if name in self.models:
            return (self.models[name],)
        for each in self.models.values():
            for file in each.files:
                if name == f"{each.name}-{file.precision.lower()}":
                    return (replace(each, name=name, files=(file,)),)
        return tuple(each for each in self.models.values() if each.series == name)

    @property
    def names(self) -> Sequence[str]:
        """All names, those of families with several sizes among them."""
        series = [each.series for each in self.models.values()]
        families = {name for name in series if series.count(name) > 1}
        return sorted(families.union(self.models))


def own_file() -> Path | None:
    """Returns the user's own file; None if there is none.

    Raises:
        InputError: if the environment names one that is not there.
    """
    if named := os.environ.get(OWN_VARIABLE):
        file = Path(named).expanduser()
        if not file.is_file():
            raise InputError(f"{OWN_VARIABLE} is {named!r}, and there is no such file: create it")
        return file
    folder = settings_folder()
    return folder / _OWN if folder is not None and (folder / _OWN).is_file() else None


@cache
def _shipped() -> Catalogue:
    return _read(_SHIPPED)


def _read(file: Path) -> Catalogue:
    try:
        told: dict[str, Any] = tomllib.loads(read_utf8(file))
        models = told.get("models", {})
        named = {name: {"name": name, **fields} for name, fields in models.items()}
        told = {"vocabularies": {}, **told, "models": named}
        found = records.decode(Catalogue, told, "the file")
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file} is not TOML: {error}") from error
    except (records.RecordError, TypeError, AttributeError) as error:
        raise InputError(f"{file} is no catalogue: {error} (docs/models.md shows one)") from error
    for each in found.models.values():
        _check(file, each)
    return found


def _check(file: Path, entry: CatalogueEntry) -> None:
    """Refuses an entry that no model could be taken by.

    Raises:
        InputError: with what is wrong.
    """
    wrong = None
    if entry.name != entry.name.lower() or "/" in entry.name or not entry.series:
        wrong = "names have no capitals and no slashes, as in mine:7b"
    elif not entry.files:
        wrong = "files is empty: name one at least"
    elif entry.kind not in KINDS:
        wrong = f"kind is {entry.kind!r}: use one of {', '.join(KINDS)}"
    elif any(each.size <= 0 for each in entry.files):
        wrong = "a file's size is not positive: give its bytes"
    if wrong is not None:
        raise InputError(f"{file}: {entry.name!r}: {wrong}")
