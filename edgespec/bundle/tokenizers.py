"""Reading a `tokenizer.json` with the `tokenizers` library, whose panics are errors here.

The library holds the interpreter's lock while it parses a file, 0.4 s for 150,000 tokens, in which
no other thread runs and no window answers. So the large part of most files, a vocabulary and merges
of the kind BPE, is parsed by Python and handed over a piece at a time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple, overload

import tokenizers
from tokenizers.models import BPE

from edgespec.errors import caught_panics

# Few files have one that is not empty, so that few are searched.
_PREFIX = re.compile(r'"continuing_subword_prefix"\s*:\s*"[^"]')
_OF_DAMAGE = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)
_MOST_ADDED = 1000  # tokens around a text: the library ends the process where memory runs out
_BPE_OPTIONS = {
    "dropout",
    "unk_token",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "fuse_unk",
    "byte_fallback",
    "ignore_merges",
}


class ParsedTokenizer(NamedTuple):
    """A tokenizer of the library, as a file defines it.

    Attributes:
        backend: The tokenizer.
        vocab_size: One more than the highest id, added tokens included.
    """

    backend: tokenizers.Tokenizer
    vocab_size: int


def parse_tokenizer(text: str, keep: bool = False) -> ParsedTokenizer:
    """Returns the tokenizer of a file's content.

    What would have the library panic, and write about it to stderr, is looked for before.

    Args:
        text: The content.
        keep: Whether the same text is read again in a moment, as one is whose bundle is made: its
            vocabulary and merges are kept until then.

    Raises:
        Exception: if it is damaged; the library raises nothing narrower.
    """
    if _PREFIX.search(text):
        _require_prefixes(json.loads(text))
    with caught_panics():
        parsed = _in_pieces(text, keep) or _sized(tokenizers.Tokenizer.from_str(text))
    processor = parsed.backend.post_processor
    if processor is not None:
        _require_defined(json.loads(processor.__getstate__()))
    return parsed


def _sized(backend: tokenizers.Tokenizer) -> ParsedTokenizer:
    ids = backend.get_vocab(with_added_tokens=True).values()
    return ParsedTokenizer(backend, 1 + max(ids, default=-1))


class _Pieces(NamedTuple):
    """A file of the kind BPE.

    Attributes:
        content: What it holds beside vocabulary and merges.
        model: Vocabulary and merges.
        highest: The highest id of the vocabulary.
    """

    content: dict[str, Any]
    model: BPE
    highest: int


_kept: dict[bytes, _Pieces] = {}  # of one text at most, by its hash


def _in_pieces(text: str, keep: bool = False) -> ParsedTokenizer | None:
    """Returns the tokenizer of a sound file of the kind BPE, made while other threads go on.

    Returns:
        The same as the library makes of the whole file; None if that must read it.
    """
    try:
        name = sha256(text.encode()).digest() if keep or _kept else b""
        pieces = _kept.pop(name, None) or _pieces(text)
        if pieces is None:
            return None
        if keep:
            _kept.clear()
            _kept[name] = pieces
        added = pieces.content.get("added_tokens", [])
        backend = tokenizers.Tokenizer.from_str(json.dumps({**pieces.content, "added_tokens": []}))
        backend.model = pieces.model
        # Their numbers follow from the vocabulary, so that they can only come behind it.
        for special, tokens in groupby(added, lambda token: token["special"]):
            made = [_added_token(token) for token in tokens]
            backend.add_special_tokens(made) if special else backend.add_tokens(made)
    except Exception as error:
        # Of a damaged file the library tells what is wrong. Other errors are the caller's, as of a
        # signal's handler.
        if type(error) is Exception or isinstance(error, _OF_DAMAGE):
            return None
        raise
    highest = max(pieces.highest, *backend.get_added_tokens_decoder(), -1)
    return ParsedTokenizer(backend, 1 + highest)


def _pieces(text: str) -> _Pieces | None:
    content = json.loads(text, parse_int=_number)
    options = dict(content["model"])
    if options.pop("type") != "BPE":
        return None
    vocabulary = options.pop("vocab")
    merges = options.pop("merges")
    if not options.keys() <= _BPE_OPTIONS or not isinstance(merges, list):
        return None
    given = {name: value for name, value in options.items() if value is not None}
    model = BPE(vocabulary, _Merges(merges), **given)
    content["model"] |= {"vocab": {}, "merges": []}
    return _Pieces(content, model, max(vocabulary.values(), default=-1))


def _number(digits: str) -> int:
    """Converts a number of a file, in Python, so that other threads have a turn at each."""
    return int(digits)


def _added_token(token: dict[str, Any]) -> tokenizers.AddedToken:
    told = {name: value for name, value in token.items() if name not in ("id", "content")}
    return tokenizers.AddedToken(token["content"], **told)


class _Merges(Sequence[tuple[str, str]]):
    """Pairs of a file's merges, made one by one as the library asks for them.

    Raises:
        ValueError: while it is read, if a merge is none.
    """

    def __init__(self, merges: list[str | list[str]]) -> None:
        self._merges = merges

    def __len__(self) -> int:
        return len(self._merges)

    @overload
    def __getitem__(self, index: int) -> tuple[str, str]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[str, str]]: ...

    def __getitem__(self, index: int | slice) -> tuple[str, str] | Sequence[tuple[str, str]]:
        return list(self)[index]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for merge in self._merges:
            first, second = merge.split(" ") if isinstance(merge, str) else merge
            if first == "#version:":  # a comment, in old files
                raise ValueError(f"{merge!r} is no merge")
            yield first, second


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
    """Checks that templates have no tokens that they do not define, and that they add few."""
    for each in rule.get("processors", [rule]):
        if each["type"] == "TemplateProcessing":
            pieces = [*each["single"], *each["pair"]]
            names = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
            if missing := set(names) - each["special_tokens"].keys():
                raise ValueError(f"its template does not define {min(missing)!r}")
            count = sum(len(each["special_tokens"][name]["ids"]) for name in names)
            if count > _MOST_ADDED:
                raise ValueError(f"its template adds {count} tokens to a text")
