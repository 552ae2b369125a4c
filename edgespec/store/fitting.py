"""Proposes drafts: smaller models of the same vocabulary."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from edgespec import bundle as bundles
from edgespec.store.store import BundleStore, StoredBundle
from edgespec.system.files import read_file

_SHARE = 0.4  # of the target's weights; with more, drafts seldom pay


class DraftSuggestion(NamedTuple):
    """A published model that drafts for those of the same vocabulary.

    Attributes:
        vocabulary: the `vocabulary_hash` of both.
        word: what the target's name has in it.
        model: the draft's name on the Hub.
        parameters: its number of weights.
    """

    vocabulary: str
    word: str
    model: str
    parameters: int


_QWEN, _SMOLLM2 = "36c3749fd3c87e24", "f5f01d320c3a4ae0"
_FITTING = (
    DraftSuggestion(_QWEN, "coder", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", 494_000_000),
    DraftSuggestion(_QWEN, "", "Qwen/Qwen2.5-0.5B-Instruct-GGUF", 494_000_000),
    DraftSuggestion(_SMOLLM2, "", "HuggingFaceTB/SmolLM2-135M-Instruct", 135_000_000),
)


def vocabulary_hash(folder: Path) -> str:
    """Returns a hash of a tokenizer's tokens in the order of their ids, but for added ones.

    Models of a family differ in those, which hold places for tools and the like.
    """
    content = json.loads(read_file(folder / "tokenizer.json").decode())
    added = {each["content"] for each in content.get("added_tokens") or []}
    tokens = content["model"].get("vocab") or {}
    if isinstance(tokens, list):  # of unigrams, with their scores
        tokens = {each[0]: number for number, each in enumerate(tokens)}
    ordered = sorted(tokens.keys() - added, key=tokens.__getitem__)
    return sha256("\n".join(ordered).encode(errors="surrogatepass")).hexdigest()[:16]


def advice(made: StoredBundle, store: BundleStore) -> str | None:
    """Returns a line that proposes a draft; None if none is known, or the model needs none.

    Models in the store go before those on the Hub.
    """
    manifest = bundles.load(made.path).manifest
    target = manifest.roles[bundles.TARGET]
    if len(manifest.roles) > 1 or not target.writes:
        return None
    found = [
        (bundles.load(each.path).target.parameters, name)
        for name, each in store.made().items()
        if each.record.vocabulary == made.record.vocabulary and not each.record.draft
    ]
    found += [
        (each.parameters, each.model)
        for each in _FITTING
        if each.vocabulary == made.record.vocabulary and each.word in made.path.name.lower()
    ]
    most = _SHARE * target.parameters
    draft = next((name for parameters, name in found if parameters <= most), None)
    if draft is None:
        return None
    return f"{draft} has the same vocabulary and can draft for it, which is faster: --draft {draft}"
