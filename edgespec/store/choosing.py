"""Which file of a model fits this machine: memory as a plan counts it, and speed that it allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from edgespec.errors import MemoryLimitError
from edgespec.models.named import parts, tower_name
from edgespec.store.catalogue import CHAT, Catalogue, CatalogueEntry, ModelFile
from edgespec.system.bandwidth import bandwidth
from edgespec.system.files import exists
from edgespec.system.machine import available_bytes, default_threads

CONTEXT = 4096
"""Tokens of the context that memory is counted for, the usual one of a plan."""

_SPARE = 254  # slots besides, as a plan has them
_BASELINE = 90 << 20  # bytes of the interpreter and its libraries
_OF_A_TOKEN = 1 << 10  # bytes of the vocabulary: tokenizer and logits
_LOOKING = 640 << 20  # bytes that reading pictures takes besides the weights
_REACHED = 0.75  # share of the memory's speed that passes of one row reach
_GOOD = 8.0  # tokens a second that are read without waiting
_PROPOSED = 3
_SECONDS = 1.0  # in which memory is read


@dataclass(frozen=True)
class ModelChoice:
    """A file of a model that was chosen, and what drafts for it.

    Attributes:
        entry: the model's entry.
        file: the file.
        memory: bytes that it takes with its draft.
        draft: its draft; None: it has none, or none that fits.
    """

    entry: CatalogueEntry
    file: ModelFile
    memory: int
    draft: ModelChoice | None = None

    @property
    def hub_name(self) -> str:
        """What it is called on the Hub."""
        return f"{self.entry.repository}:{self.file.file}"

    @property
    def size(self) -> int:
        """Bytes of all that is fetched."""
        drafting = 0 if self.draft is None else self.draft.size
        return self.file.size + self.entry.tower + drafting


class ModelChooser:
    """Chooses among models for a machine.

    Args:
        catalogue: the models.
        free: bytes of memory that are free; None: those of this machine.
    """

    def __init__(self, catalogue: Catalogue, free: int | None = None) -> None:
        self._catalogue = catalogue
        self._free = available_bytes() if free is None else free

    @cached_property
    def bandwidth(self) -> float:
        """Bytes a second that this machine reads from memory."""
        return bandwidth(default_threads(), _SECONDS)

    def rate(self, entry: CatalogueEntry, file: ModelFile) -> float:
        """Returns the tokens a second to expect of a model without drafts."""
        share = entry.active / entry.parameters if entry.active and entry.parameters else 1.0
        return _REACHED * self.bandwidth / (share * file.size)

    def memory(self, entry: CatalogueEntry, file: ModelFile) -> int:
        """Returns the bytes that a model takes with a context of `CONTEXT` tokens."""
        known = self._catalogue.vocabularies.get(entry.vocabulary)
        tokens = 0 if known is None else known.size
        looking = entry.tower + _LOOKING if entry.tower else 0
        context = min(entry.context or CONTEXT, CONTEXT) + _SPARE
        held = file.size + entry.state + context * entry.cache
        return _BASELINE + _OF_A_TOKEN * tokens + held + looking

    def fits(self, entry: CatalogueEntry, file: ModelFile) -> bool:
        """Whether memory has room for a model."""
        return self.memory(entry, file) <= self._free

    def fitting(self, entry: CatalogueEntry) -> ModelChoice | None:
        """Returns the file of an entry to take here; None if none fits."""
        usual = entry.files[0]
        smaller = [each for each in entry.files if each.size < usual.size]
        for file in (usual, *sorted(smaller, key=lambda each: -each.size)):
            memory = self.memory(entry, file)
            if memory <= self._free:
                draft = self._draft(entry, self._free - memory)
                total = memory if draft is None else memory + draft.memory
                return ModelChoice(entry, file, total, draft)
        return None

    def _draft(self, target: CatalogueEntry, room: int) -> ModelChoice | None:
        entry = self._catalogue.models.get(target.draft)
        if entry is None:
            return None
        file = entry.files[0]
        memory = self.memory(entry, file) - _BASELINE
        return ModelChoice(entry, file, memory) if memory <= room else None

    def best(
        self,
        entries: Sequence[CatalogueEntry],
        told: Callable[[CatalogueEntry], CatalogueEntry] = lambda entry: entry,
    ) -> ModelChoice:
        """Returns the best choice among entries that a name may mean.

        Of several that is the one with the most weights that fits and has a good speed.

        Args:
            entries: one or more.
            told: returns an entry with what the Hub says of its files.

        Raises:
            MemoryLimitError: if none fits.
        """
        for entry in self._ranked(entries) if len(entries) > 1 else entries:
            if (choice := self.fitting(told(entry))) is not None:
                return choice
        needs = [(self.memory(each, file), each) for each in entries for file in each.files]
        least, entry = min(needs, key=lambda each: each[0])
        raise MemoryLimitError(
            f"{entry.name} needs {gigabytes(least)} of memory with a context of {CONTEXT:,} "
            f"tokens, and {gigabytes(self._free)} are free: close other programs, or choose a "
            "model that fits, which `edgespec search` lists"
        )

    def _ranked(self, entries: Sequence[CatalogueEntry]) -> Sequence[CatalogueEntry]:
        """Returns entries that fit, the best first: those of good speed by their weights."""
        found = [(each, self.fitting(each)) for each in entries]
        rates = {each: self.rate(each, choice.file) for each, choice in found if choice is not None}
        return sorted(rates, key=lambda each: _rank(each, rates[each]), reverse=True)

    def proposals(self) -> Sequence[ModelChoice]:
        """Returns up to three models to talk to here, the best first.

        The largest of good speed, others that are faster by far, and where there are not enough of
        them, the fastest.
        """
        models = self._catalogue.models.values()
        choices = [self.fitting(each) for each in models if each.proposed and each.kind == CHAT]
        fitting = [each for each in choices if each is not None]
        rates = {each: self.rate(each.entry, each.file) for each in fitting}
        found = list[ModelChoice]()
        for least in (_GOOD, 2.5 * _GOOD, 6 * _GOOD):
            fast = [each for each in fitting if rates[each] >= least and each not in found]
            found += sorted(fast, key=lambda each: each.entry.parameters)[-1:]
        others = sorted(
            (each for each in fitting if each not in found), key=rates.__getitem__, reverse=True
        )
        found += others[: _PROPOSED - len(found)]
        return sorted(found, key=lambda each: _rank(each.entry, rates[each]), reverse=True)


def _rank(entry: CatalogueEntry, rate: float) -> tuple[bool, float]:
    """Returns what orders models: by their weights where they have a good speed, else by that."""
    good = rate >= _GOOD
    return good, entry.parameters if good else rate


def checkpoint_name(word: str) -> str:
    """Returns what a word means to who reads checkpoints: of a name of the catalogue its file.

    Raises:
        MemoryLimitError: if no file of such a name fits the memory.
    """
    if exists(word):
        return word
    catalogue = Catalogue.read()
    entries = catalogue.named(word)
    return ModelChooser(catalogue).best(entries, as_told).hub_name if entries else word


def as_told(entry: CatalogueEntry) -> CatalogueEntry:
    """Returns an entry with the files and sizes that the Hub tells of; as it is if none are."""
    from edgespec.export import file_sizes  # loads the onnx package

    told = file_sizes(entry.repository)
    files = [
        replace(each, size=sum(told[name] or 0 for name in parts(each.file)) or each.size)
        for each in entry.files
        if all(name in told for name in parts(each.file))
    ]
    if not files:
        return entry
    tower = tower_name(files[0].file, (name for name in told if "/" not in name))
    size = 0 if tower is None else told[tower] or entry.tower
    return replace(entry, files=tuple(files), tower=size)


def gigabytes(size: float) -> str:
    """Formats bytes for users."""
    return f"{size / 1e9:.1f} GB"
