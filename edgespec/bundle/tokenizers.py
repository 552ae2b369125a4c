"""Reading a `tokenizer.json` with the `tokenizers` library, whose panics are errors here."""

from __future__ import annotations

import json
import re
from typing import Any

import tokenizers

from edgespec.errors import caught_panics

# Few files have one that is not empty, so that few are parsed twice.
_PREFIX = re.compile(r'"continuing_subword_prefix"\s*:\s*"[^"]')


def parsed(text: str) -> tokenizers.Tokenizer:
    """Returns the tokenizer of a file's content.

    What would have the library panic, and write about it to stderr, is looked for before.

    Raises:
        Exception: if it is damaged; the library raises nothing narrower.
    """
    if _PREFIX.search(text):
        _require_prefixes(json.loads(text))
    with caught_panics():
        backend = tokenizers.Tokenizer.from_str(text)
    processor = backend.post_processor
    if processor is not None:
        _require_defined(json.loads(processor.__getstate__()))
    return backend


def _require_prefixes(content: Any) -> None:
    """Checks merges, of whose second parts the library cuts a prefix without looking."""
    model = content.get("model") if isinstance(content, dict) else None
    if not isinstance(model, dict) or not isinstance(model.get("merges"), list):
        return
    prefix = str(model.get("continuing_subword_prefix") or "")
    for merge in model["merges"]:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if isinstance(parts, list) and not str((parts or [""])[-1]).startswith(prefix):
            raise ValueError(f"the merge {merge!r:.40} does not have {prefix!r:.40} in between")


def _require_defined(rule: Any) -> None:
    """Checks that templates have no tokens that they do not define."""
    for each in rule.get("processors", [rule]):
        if each["type"] == "TemplateProcessing":
            pieces = [*each["single"], *each["pair"]]
            names = {piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece}
            if missing := names - each["special_tokens"].keys():
                raise ValueError(f"its template does not define {min(missing)!r}")
