"""Proposes drafts: smaller models of the same vocabulary."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

from edgespec import bundle as bundles
from edgespec.store.catalogue import Catalogue
from edgespec.store.store import BundleStore, StoredBundle
from edgespec.system.files import read_file

_SHARE = 0.4  # of the target's weights; with more, drafts seldom pay
_CODER = "coder"  # in the names of models of programs, which draft for each other


def vocabulary_hash(tokenizer: Path) -> str:
    """Returns a hash of a tokenizer's tokens in the order of their ids, but for added ones.

    Models of a family differ in those, which hold places for tools and the like.

    Args:
        tokenizer: the tokenizer.json.
    """
    content = json.loads(read_file(tokenizer).decode())
    added = {each["content"] for each in content.get("added_tokens") or []}
    tokens = content["model"].get("vocab") or {}
    if isinstance(tokens, list):  # of unigrams, with their scores
        tokens = {each[0]: number for number, each in enumerate(tokens)}
    ordered = sorted(tokens.keys() - added, key=tokens.__getitem__)
    return sha256("\n".join(ordered).encode(errors="surrogatepass")).hexdigest()[:16]


def advice(made: StoredBundle, store: BundleStore) -> str | None:
    """Returns a line that proposes a draft; None if none is known, or the model needs none.

    Models in the store go before those of the catalogue.
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
    catalogue = Catalogue.read()
    known = {name for name, each in catalogue.vocabularies.items() if each.hash}
    found += [
        (each.parameters, each.name)
        for each in catalogue.models.values()
        if each.vocabulary in known
        and catalogue.vocabularies[each.vocabulary].hash == made.record.vocabulary
        and (_CODER in each.name) == (_CODER in made.path.name.lower())
    ]
    most = _SHARE * target.parameters
    draft = next((name for parameters, name in found if parameters <= most), None)
    if draft is None:
        return None
    return f"{draft} has the same vocabulary and can draft for it, which is faster: --draft {draft}"
