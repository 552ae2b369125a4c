"""Text that follows a grammar: a JSON schema, a regular expression, or a context-free grammar.

llguidance (Microsoft, MIT) computes which tokens may follow. It is small and needs neither torch
nor transformers. It also tells which tokens a grammar forces, so these are drafted at no cost.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from edgespec.errors import BundleError, GrammarSizeError, InputError, reason
from edgespec.runtime.arrays import Mask
from edgespec.runtime.sampling.trials import LIMITS, Trials, is_small, too_long
from edgespec.runtime.text.schema.grammar import schema_rules
from edgespec.runtime.text.schema.normalizing import normalize

_LONGEST = 300_000  # characters of a grammar of small parts that is compiled without a trial

# Processor seconds that a text may take, and that each call may add. Usual calls take under 0.001.
_PATIENCE, _USUAL = 3, 0.005

_UNDECIDED = "Unable to determine if regex is empty"
_PLACE = re.compile(r"^(at \d+\(\d+\): )?(failed to compile JSON schema: )?")


class GrammarCompiler:
    """Compiles grammars for the texts of one tokenizer.

    Args:
        folder: folder of the bundle, with its `tokenizer.json`.
        vocab_size: number of token ids of the tokenizer.
        stop_ids: tokens that end a text; they are allowed where the grammar may end.

    Attributes:
        stop_ids: those of them that the tokenizer has.

    Raises:
        BundleError: if llguidance does not accept the tokenizer.
        InputError: if there is no token that ends a text.
    """

    def __init__(self, folder: Path, vocab_size: int, stop_ids: Sequence[int]) -> None:
        # Higher ids are padding of the model.
        stops = [each for each in stop_ids if each < vocab_size]
        if not stops:
            raise InputError(
                "the model has no token that ends a text, so its text cannot follow a grammar: "
                "use another model"
            )
        path = folder / "tokenizer.json"
        try:
            self._tokenizer = LLTokenizer(str(path), n_vocab=vocab_size, eos_token=stops)
        except ValueError as error:
            raise BundleError(f"{path}: grammars do not work with it ({error})") from error
        self._vocab_size = vocab_size
        self.stop_ids = frozenset(stops)
        self._trials = Trials(path, vocab_size, stops)

    def compile(self, kind: str, source: str) -> GrammarMatcher:
        """Returns a matcher at the beginning of a text.

        Args:
            kind: json_schema, regex (in Rust's syntax) or grammar (in Lark's syntax).
            source: text of the grammar; JSON for a schema.

        Raises:
            InputError: if the grammar is not valid.
            GrammarSizeError: if it is too large.
        """
        compiled = _compiled(kind, source)
        small = is_small(kind, source) and len(compiled) <= _LONGEST
        return self._matcher(kind, compiled, small)

    def compile_answer(
        self,
        lark: str,
        content: tuple[str, str] | None = None,
        schemas: Iterable[Mapping[str, Any]] = (),
    ) -> GrammarMatcher:
        """Returns a matcher at the beginning of an answer.

        Args:
            lark: grammar in llguidance's notation, which calls that of the content `content`.
            content: kind and source of the content's grammar, as for `compile`.
            schemas: the JSON schemas from which `lark` was made.

        Raises:
            InputError: if a grammar is not valid.
            GrammarSizeError: if one is too large.
        """
        grammars: list[dict[str, Any]] = [{"name": "answer", "lark_grammar": lark}]
        if content is not None:
            self.compile(*content)  # for an error that is about this grammar alone
            grammars.append(_content(*content))
        small = len(lark) <= _LONGEST and (content is None or is_small(*content))
        small = small and all(is_small("json_schema", json.dumps(schema)) for schema in schemas)
        return self._matcher("the grammar of the tools", json.dumps({"grammars": grammars}), small)

    def special(self, tokens: Iterable[tuple[str, int]]) -> dict[str, int]:
        """Returns those of some named tokens that grammars must name, since nothing spells them."""
        return {name: id_ for name, id_ in tokens if self._tokenizer.is_special_token(id_)}

    def _matcher(self, name: str, grammar: str, small: bool) -> GrammarMatcher:
        objection = "" if small else self._trials.objection(grammar)
        if objection:
            raise GrammarSizeError(f"{name} is too large ({objection}): make it smaller")
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            why = _reason(matcher, whole=name == "grammar")
            raise InputError(f"{name} cannot be used ({why}): correct it")
        return GrammarMatcher(matcher, self._vocab_size, _Effort())


@dataclass
class _Effort:
    """What was spent on a text and its branches: processor seconds, and calls."""

    seconds: float = 0
    calls: int = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        begun = time.thread_time()
        yield
        self.seconds += time.thread_time() - begun
        self.calls += 1

    @property
    def is_too_large(self) -> bool:
        return self.seconds > _PATIENCE + _USUAL * self.calls


class GrammarMatcher:
    """The state of one text in its grammar."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, effort: _Effort) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._effort = effort

    def __deepcopy__(self, _: object) -> GrammarMatcher:
        return GrammarMatcher(self._matcher.deep_copy(), self._vocab_size, self._effort)

    def allowed(self) -> Mask:
        """Returns which tokens may come next; at least one.

        Raises:
            InputError: if there is none, or the grammar has become too complex.
        """
        with self._effort.counted():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        # After an error the bitmask would allow the text to end.
        if self._matcher.is_error() or self._effort.is_too_large:
            raise self._stuck()
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def advance(self, token: int) -> None:
        """Moves on by one token of the text.

        Raises:
            InputError: if the grammar requires text that no token stands for, or has become too
                complex.
        """
        with self._effort.counted():
            taken = self._matcher.consume_token(token)
        if not taken:
            raise self._stuck()

    def forced(self) -> list[int]:
        """Returns the tokens that the grammar forces next; often there are none.

        Forced text is split into tokens as the tokenizer would do it.
        """
        with self._effort.counted():
            return list(self._matcher.compute_ff_tokens())

    def valid(self, tokens: Sequence[int]) -> int:
        """Returns how many of these tokens, in this order, may come next."""
        with self._effort.counted():
            return int(self._matcher.validate_tokens(list(tokens)))

    def _stuck(self) -> InputError:
        if self._effort.is_too_large:
            return InputError(
                f"the grammar takes too long ({self._effort.seconds:.0f} s of processor time): "
                "make it simpler, so that fewer rules fit one text"
            )
        return InputError(
            f"the grammar allows no further token ({_reason(self._matcher)}): make it simpler, or "
            "leave out characters that the tokenizer lacks"
        )


def _reason(matcher: LLMatcher, whole: bool = True) -> str:
    """Returns the error message of a matcher, without its state and the grammar.

    Args:
        matcher: the matcher.
        whole: whether the message may show places of the grammar, since users wrote it.
    """
    message = re.split(r"<state>|<non-verbose/>", matcher.get_error())[0]
    if _UNDECIDED in message:
        return "patterns that one string must match are too complex together"
    if not whole:
        message = _PLACE.sub("", re.split(r"\n\s*\d+ \| ", message)[0])
        message = message.replace("Unimplemented keys: ", "a text cannot be held to ")
        if "coerce_one_of" in message:
            message = "the alternatives of a oneOf cannot be told apart"
    return reason(message)


def _content(kind: str, source: str) -> dict[str, Any]:
    """Returns a grammar as a part of another one."""
    compiled = _compiled(kind, source)
    part = {"lark_grammar": compiled} if kind == "grammar" else json.loads(compiled)["grammars"][0]
    return {**part, "name": "content"}


def _compiled(kind: str, source: str) -> str:
    """Returns a grammar in llguidance's format."""
    if objection := too_long(source):
        raise GrammarSizeError(f"{kind} is too large ({objection}): make it smaller")
    if kind == "regex":
        return LLMatcher.grammar_from_regex(source)
    if kind == "grammar":
        return LLMatcher.grammar_from_lark(source)
    try:
        LLMatcher.grammar_from_json_schema(source, defaults={})  # for errors of its own
        rules = schema_rules("start", normalize(json.loads(source)))
    except (ValueError, RecursionError) as error:
        if "recursion" in str(error):
            raise GrammarSizeError("json_schema nests too deep: make it flatter") from error
        raise InputError(f"json_schema is no JSON object ({reason(error)}): correct it") from error
    except InputError as error:
        raise type(error)(f"json_schema {error}") from error
    if rules[0].startswith(alone := "start: %json "):
        return LLMatcher.grammar_from_json_schema(rules[0].removeprefix(alone), defaults={})
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}]})
