"""Makes a bundle of a model, once: it is found again by the model's files, or by their content."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import edgespec
from edgespec import bundle as bundles
from edgespec.bundle import Bundle
from edgespec.errors import InputError, harmless
from edgespec.models.embedded import BUNDLE
from edgespec.store.fitting import advice, vocabulary_hash
from edgespec.store.model_ref import ModelRef, find_model
from edgespec.store.store import RECORD, BundleStore, Record, StoredBundle, write_record

if TYPE_CHECKING:
    from edgespec.export import Progress

_SETTINGS = 3  # raised when other bundles are made of the same models
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
) -> Path:
    """Returns the folder of a model's bundle, which is made if the model is none.

    Args:
        model: a bundle, a checkpoint's folder, a GGUF file, a name on the Hub or one in the store;
            None: the embedded pair.
        draft: likewise a model to draft with, or a head, but a bundle; None: the bundle's own, if
            it has one.
        progress: called with how much of a bundle is made; None: bars show it on terminals.
        say: called with lines for the user; by default terminals show them, and others log them.

    Raises:
        CheckpointError: if a checkpoint is damaged or not supported.
        ExportError: if a model cannot be downloaded, or the bundle cannot be written.
        InputError: if there is no such model, or it and the draft do not suit each other.
    """
    if model is None and draft is None:
        return BUNDLE
    target = ModelRef(str(BUNDLE), BUNDLE) if model is None else find_model(model)
    drafting = None if draft is None else _draft(draft)
    if target.is_bundle and drafting is None:
        assert target.path is not None
        return target.path
    pair = [target] if drafting is None else [target, drafting]
    store = BundleStore()
    identity = _hashed([each.identity for each in pair])
    made = store.seen(identity)
    if made is None:
        with _shown(progress) as show:
            made = _made(store, [each.fetched(show) for each in pair], identity, show, say)
    return made.path


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


def _made(
    store: BundleStore,
    pair: Sequence[ModelRef],
    identity: str,
    progress: Progress,
    say: Callable[[str], None],
) -> StoredBundle:
    """Makes a bundle of a model and perhaps its draft, unless one of this content is there."""
    from edgespec.export import partial_bundle  # loads the onnx package

    contents = [each.content(progress) for each in pair]
    names = [each.name for each in pair]
    content = _hashed(contents)
    alone = _hashed(contents[:1])
    target = names[0]
    draft = "".join(names[1:])
    with store.changing(lambda: say("waiting for another process that makes a bundle")):
        found = store.of_content(content)
        if found is not None:
            return store.also(found, identity)
        for each in store.made().values():  # of older files or versions
            if (each.record.target, each.record.draft) == (target, draft):
                store.discard(each)
        short = [each.short_name for each in pair]
        folder = store.folder / store.free_name("+".join(short))
        say(f"making a bundle of {' and '.join(short)}, once: {folder}")
        paths = [each.path for each in pair if each.path is not None]
        drafting = paths[1] if draft else None
        if (linked := store.of_content(alone)) is not None:
            paths[0] = linked.path
        with partial_bundle(paths[0], folder, drafting, progress=progress) as partial:
            record = Record(target, draft, content, (identity,), vocabulary_hash(partial.folder))
            write_record(partial.folder / RECORD, record)
    made = StoredBundle(folder, record)
    if not draft and (line := advice(made, store)) is not None:
        say(line)
    return made


def _shown(progress: Progress | None) -> AbstractContextManager[Progress]:
    """Opens what shows the progress of a bundle that is made."""
    if progress is not None:
        return nullcontext(progress)
    from edgespec.store.progress import role_bars  # loads rich

    return role_bars()


def bundle_name(bundle: Bundle) -> str:
    """Returns the name of a bundle's folder, or of the embedded pair's target."""
    if bundle.path.resolve() == BUNDLE.resolve():
        return bundle.manifest.provenance["target"]
    return bundle.path.resolve().name


def _hashed(facts: Sequence[str]) -> str:
    """Returns a hash of models' identities or contents, and of what makes bundles of them."""
    facts = (edgespec.__version__, str(bundles.FORMAT), str(_SETTINGS), *facts)
    return sha256(repr(facts).encode(errors="surrogatepass")).hexdigest()[:32]
