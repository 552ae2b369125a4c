"""Makes a bundle of a model, once: it is found again by the model's files, or by their content."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import edgespec
from edgespec import bundle as bundles
from edgespec.bundle import Bundle
from edgespec.errors import ExportError, InputError, harmless
from edgespec.models.embedded import BUNDLE
from edgespec.store.catalogue import Catalogue
from edgespec.store.choosing import ModelChoice, ModelChooser, as_told, gigabytes
from edgespec.store.fitting import advice, vocabulary_hash
from edgespec.store.model_ref import ModelRef, find_model
from edgespec.store.store import (
    RECORD,
    BundleStore,
    Record,
    StoredBundle,
    read_record,
    write_record,
)

if TYPE_CHECKING:
    from edgespec.export import Progress

_SETTINGS = 4  # raised when other bundles are made of the same models
_BUSY = "waiting for another process that makes a bundle"
_log = logging.getLogger(__name__)


def _say(line: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"edgespec: {harmless(line)}", file=sys.stderr, flush=True)
    else:
        _log.info("%s", line)


def bundle_of(
    model: str | Path | None,
    draft: str | Path | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = _say,
    fetch: bool = True,
) -> Path:
    """Returns the folder of a model's bundle, which is made if the model is none.

    Args:
        model: a bundle, a checkpoint's folder, a GGUF file, or a name on the Hub, in the store or
            in the catalogue; None: the embedded pair.
        draft: likewise a model to draft with, or a head, but a bundle; None: the bundle's own, or
            the catalogue's for the model, if there is one.
        progress: called with how much of a bundle is made; None: bars show it on terminals.
        say: called with lines for the user; by default terminals show them, and others log them.
        fetch: whether models may be downloaded.

    Raises:
        CheckpointError: if a checkpoint is damaged or not supported.
        ExportError: if a model cannot be downloaded, or the bundle cannot be written.
        InputError: if there is no such model, it would have to be fetched and may not, or it and
            the draft do not suit each other.
        MemoryLimitError: if no file of a name of the catalogue fits the memory.
    """
    if model is None and draft is None:
        return BUNDLE
    target = ModelRef(str(BUNDLE), BUNDLE) if model is None else find_model(model)
    drafting = None if draft is None else _draft(draft)
    pair = [target] if drafting is None else [target, drafting]
    for each in pair:
        if each.shadows:
            word = each.short_name
            say(
                f"{word} is {each.path} here, and not the model that `edgespec list` shows: "
                f"`edgespec models name {word} NEW` gives that one another name"
            )
    if target.is_bundle and drafting is None:
        assert target.path is not None
        return target.path
    store = BundleStore()
    identity = _hashed([each.identity for each in pair])
    made = store.seen(identity)
    if made is None:
        wanted = _chosen(pair, identity, say)
        made = _of_other_name(store, wanted, say)
        if made is None and not fetch:
            _check_here(pair)
        made = made or _new_bundle(store, wanted, progress, say)
    return made.path


def _check_here(models: Sequence[ModelRef]) -> None:
    """Raises an error if a model must be downloaded first."""
    absent = [each.name for each in models if each.path is None]
    if absent:
        names = " --draft ".join(each.name for each in models)
        raise InputError(
            f"no bundle of {' and '.join(absent)} is on this machine: `edgespec pull {names}` "
            "fetches what it needs"
        )


@dataclass(frozen=True)
class _Wanted:
    """Models of which a bundle is to be made.

    Attributes:
        models: the target, and perhaps its draft.
        identities: hashes of what tells them from others; first that of what was asked for.
        called: the name of the catalogue that they came by; empty if they came by others.
        may_drop: whether it may be made without the draft, since nobody asked for that one.
    """

    models: Sequence[ModelRef]
    identities: tuple[str, ...]
    called: str = ""
    may_drop: bool = False

    def alone(self) -> _Wanted:
        """Returns the same without the draft."""
        identities = self.identities[:1]
        return replace(self, models=self.models[:1], identities=identities, may_drop=False)

    def fetched(self, progress: Progress, say: Callable[[str], None]) -> _Wanted:
        """Returns the same on this machine, without a draft that cannot be fetched."""
        target, *drafts = self.models
        models = [target.fetched(progress)]
        try:
            models += [each.fetched(progress) for each in drafts]
        except ExportError as error:
            if not self.may_drop:
                raise
            say(f"the draft is left out, since it cannot be fetched: {error}")
            return replace(self.alone(), models=models)
        return replace(self, models=models)


def _of_other_name(
    store: BundleStore, wanted: _Wanted, say: Callable[[str], None]
) -> StoredBundle | None:
    """Returns the bundle of models that are here by another name, and notes the new one."""
    asked, *others = wanted.identities
    for other in others:
        with store.changing(lambda: say(_BUSY)):
            if (made := store.seen(other)) is not None:
                return store.also(made, asked)
    return None


def _new_bundle(
    store: BundleStore, wanted: _Wanted, progress: Progress | None, say: Callable[[str], None]
) -> StoredBundle:
    """Makes a bundle of models, which are fetched first if need be."""
    with _shown(progress) as show:
        wanted = wanted.fetched(show, say)
        try:
            return _made(store, wanted, show, say)
        except _OtherVocabularyError:
            say("the draft is left out, since its vocabulary is not the model's")
            return _made(store, wanted.alone(), show, say)


def _chosen(pair: Sequence[ModelRef], identity: str, say: Callable[[str], None]) -> _Wanted:
    """Chooses files for names of the catalogue, and a draft where nobody named one."""
    choices = [_choice(each) for each in pair]
    models = [
        each if choice is None else ModelRef(choice.hub_name, None)
        for each, choice in zip(pair, choices, strict=True)
    ]
    if not any(choices):
        return _Wanted(models, (identity,))
    target = choices[0]
    called = ""
    proposed = None
    if target is not None and len(pair) == 1:
        called = target.entry.name
        proposed = target.draft
        drafts = "" if proposed is None else f"; {proposed.entry.name} drafts for it"
        say(f"{called} is {target.hub_name}, {gigabytes(target.size)} to fetch{drafts}")
    if proposed is not None:
        models.append(ModelRef(proposed.hub_name, None))
    identities = (identity, _hashed([each.identity for each in models]))
    return _Wanted(models, identities, called, proposed is not None)


def _choice(model: ModelRef) -> ModelChoice | None:
    if not model.entries:
        return None
    return ModelChooser(Catalogue.read()).best(model.entries, as_told)


def _draft(draft: str | Path) -> ModelRef:
    """Finds a draft model. That of a bundle in the store is what the bundle was made from."""
    found = find_model(draft)
    if not found.is_bundle:
        return found
    made = next((each for each in BundleStore().made().values() if each.path == found.path), None)
    if made is None:
        raise InputError(
            f"{draft} is a bundle, which cannot be a draft: give the checkpoint or GGUF file that "
            "it was made from"
        )
    return find_model(made.record.target)


class _OtherVocabularyError(Exception):
    """A draft that nobody asked for has another vocabulary than its target."""


def _made(
    store: BundleStore, wanted: _Wanted, progress: Progress, say: Callable[[str], None]
) -> StoredBundle:
    """Makes a bundle of a model and perhaps its draft, unless one of this content is there."""
    from edgespec.export import partial_bundle  # loads the onnx package

    pair = wanted.models
    contents = [each.content(progress) for each in pair]
    names = [each.name for each in pair]
    content = _hashed(contents)
    alone = _hashed(contents[:1])
    target = names[0]
    draft = "".join(names[1:])
    with store.changing(lambda: say(_BUSY)):
        found = store.of_content(content)
        if found is not None:
            return store.also(found, wanted.identities[0])
        for each in store.made().values():  # of older files or versions
            if (each.record.target, each.record.draft) == (target, draft):
                store.discard(each)
        short = [wanted.called] if wanted.called else [each.short_name for each in pair]
        folder = store.folder / store.free_name("+".join(short))
        say(f"making a bundle of {' and '.join(short)}, once: {folder}")
        paths = [each.path for each in pair if each.path is not None]
        drafting = paths[1] if draft else None
        if (linked := store.of_content(alone)) is not None:
            paths[0] = linked.path
        with partial_bundle(paths[0], folder, drafting, progress=progress) as partial:
            vocabulary = vocabulary_hash(partial.folder / "tokenizer.json")
            if wanted.may_drop and _draft_vocabulary(partial.folder) not in ("", vocabulary):
                raise _OtherVocabularyError
            record = Record(target, draft, content, wanted.identities, vocabulary, wanted.called)
            write_record(partial.folder / RECORD, record)
    made = StoredBundle(folder, record)
    if not draft and (line := advice(made, store)) is not None:
        say(line)
    return made


def _draft_vocabulary(folder: Path) -> str:
    """Returns the hash of a draft's own vocabulary; empty if its tokens are the target's."""
    draft = bundles.load(folder).draft
    return vocabulary_hash(folder / draft.tokenizer) if draft and draft.tokenizer else ""


def _shown(progress: Progress | None) -> AbstractContextManager[Progress]:
    """Opens what shows the progress of a bundle that is made."""
    if progress is not None:
        return nullcontext(progress)
    from edgespec.store.progress import role_bars  # loads rich

    return role_bars()


def bundle_name(bundle: Bundle) -> str:
    """Returns the name that a bundle came by, or of its folder, or of the embedded target."""
    path = bundle.path.resolve()
    if path == BUNDLE.resolve():
        return bundle.manifest.provenance["target"]
    record = read_record(path / RECORD)
    return path.name if record is None or not record.called else record.called


def _hashed(facts: Sequence[str]) -> str:
    """Returns a hash of models' identities or contents, and of what makes bundles of them."""
    facts = (edgespec.__version__, str(bundles.FORMAT), str(_SETTINGS), *facts)
    return sha256(repr(facts).encode(errors="surrogatepass")).hexdigest()[:32]
