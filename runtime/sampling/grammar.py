"""Text that follows a grammar: a JSON schema, a regular expression, or a context-free grammar.

llguidance (Microsoft, MIT) says which tokens may follow; it is small, needs neither torch nor
transformers, and tells which tokens a grammar forces, so that these are drafted for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from edgespec.errors import BundleError, InputError, reason

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

Allowed = npt.NDArray[np.bool_]
"""[V]: which tokens may follow."""

_COMPACT: JsonCompileOptions = {
    "whitespace_flexible": False
}  # a model that may indent for ever does


class GrammarCompiler:
    """Makes guides for texts of one tokenizer.

    Args:
        folder: of the bundle, with its `tokenizer.json`.
        vocab_size: ids that the tokenizer knows.
        stop_ids: tokens that end a text: they may come where the grammar may end.

    Raises:
        BundleError: if llguidance does not take the tokenizer.
        InputError: if there is no token that ends a text.
    """

    def __init__(self, folder: Path, vocab_size: int, stop_ids: Sequence[int]) -> None:
        stops = [each for each in stop_ids if each < vocab_size]  # others are the model's padding
        if not stops:
            raise InputError(
                "the model has no token that ends a text, so that none can be made to follow a "
                "grammar: use another model"
            )
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = LLTokenizer(str(path), n_vocab=vocab_size, eos_token=stops)
        except ValueError as error:
            raise BundleError(f"{path}: no grammar works with it ({error})") from error
        self._vocab_size = vocab_size

    def compile(self, kind: str, source: str) -> GrammarMatcher:
        """For one text.

        Args:
            kind: json_schema, regex (as Rust writes them) or grammar (in Lark's notation).
            source: of the grammar; of a schema, JSON.

        Raises:
            InputError: if it is not valid, or too complex.
        """
        matcher = LLMatcher(self._tokenizer, _compiled(kind, source), log_level=0)
        if matcher.is_error():
            raise InputError(f"{kind} cannot be used ({_reason(matcher)}): correct it")
        return GrammarMatcher(matcher, self._vocab_size)


class GrammarMatcher:
    """Where one text stands in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> Allowed:
        """Which tokens may come next; at least one.

        Raises:
            InputError: if there is none, or the grammar has become too complex.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():  # the bits then let the text end, wherever it is
            raise self._stuck()
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def advance(self, token: int) -> None:
        """This one came.

        Raises:
            InputError: if the grammar wants what no token stands for, or has become too complex.
        """
        if not self._matcher.consume_token(token):
            raise self._stuck()

    def forced(self) -> list[int]:
        """What comes next by the grammar alone, as the tokenizer would write it; often nothing."""
        return list(self._matcher.compute_ff_tokens())

    def valid(self, tokens: Sequence[int]) -> int:
        """How many of these, in this order, may come next."""
        return int(self._matcher.validate_tokens(list(tokens)))

    def _stuck(self) -> InputError:
        return InputError(
            f"the grammar cannot go on ({_reason(self._matcher)}): make it simpler, or have it ask "
            "for no characters that the tokenizer lacks"
        )


def _reason(matcher: LLMatcher) -> str:
    """Why it failed, without the parser's state behind it."""
    return reason(matcher.get_error().partition("<state>")[0])


def _compiled(kind: str, source: str) -> str:
    """A grammar as llguidance takes it."""
    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if kind == "grammar":
        return LLMatcher.grammar_from_lark(source)
    try:
        return LLMatcher.grammar_from_json_schema(source, defaults=_COMPACT)
    except ValueError as error:
        raise InputError(f"json_schema is no JSON object ({reason(error)}): correct it") from error
