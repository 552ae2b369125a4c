"""What users give, as prompts: texts, token ids, conversations, and what is around a cursor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from edgespec.bundle import Bundle
from edgespec.errors import ContextLengthError, InputError, reason
from edgespec.llm.chat import ChatOptions, PreparedPrompt, prepare_chat
from edgespec.llm.images import Viewer, taken_out
from edgespec.llm.messages import Messages, for_template
from edgespec.llm.options import GenerationOptions
from edgespec.llm.shortening import shortened
from edgespec.runtime.text.breakers import BreakerFinder
from edgespec.runtime.text.infill import InfillFormat, InfillPrompt
from edgespec.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgespec.runtime.sampling.grammar import GrammarCompiler
    from edgespec.runtime.vision import Picture


USUAL = 16
"""More characters a token than usual texts have."""

_LEAST_LONGEST = 64  # bytes a token, where normalizing may shorten a text, or tokens are short


def or_more_context(bundle: Bundle, context_length: int) -> str:
    """Returns what else helps against a text that is too long; nothing at the model's most."""
    most = bundle.target.context_length
    return "" if context_length >= most else f", or raise --context, up to {most}"


class Prompts:
    """Converts what users give to prompts for a model; needs no loaded model.

    Args:
        bundle: bundle of the model.
        tokenizer: its tokenizer.
        context_length: maximum number of tokens of prompt and output together.
        viewer: makes rows of pictures.
        grammars: returns the compiler of grammars, once it is needed.

    Attributes:
        breakers: finds what ends repetitions.
    """

    def __init__(
        self,
        bundle: Bundle,
        tokenizer: Tokenizer,
        context_length: int,
        viewer: Viewer,
        grammars: Callable[[], GrammarCompiler],
    ) -> None:
        self._made_grammars = grammars
        self._bundle = bundle
        self._viewer = viewer
        self._tokenizer = tokenizer
        self._context_length = context_length
        self.breakers = BreakerFinder(tokenizer)

    def with_context(self, context_length: int) -> Prompts:
        """Returns the same for prompts of another length."""
        return Prompts(
            self._bundle, self._tokenizer, context_length, self._viewer, self._made_grammars
        )

    def prepare(
        self,
        prompt: str | Sequence[int] | Messages,
        options: GenerationOptions,
        shifts: bool = False,
    ) -> PreparedPrompt:
        """Prepares a text; with `ChatOptions`, the answer in a conversation.

        Args:
            prompt: what the text continues.
            options: options of the text.
            shifts: whether conversations that are too long lose their oldest turns, where the
                options do not say.

        Raises:
            InputError: see `prepare_chat` and `tokens`; or if a picture cannot be read, a grammar
                cannot be used, or the prediction is none.
            ContextLengthError: if the prompt leaves no room for a token.
        """
        if isinstance(options, ChatOptions):
            given = options.context_shift
            shortens = (shifts if given is None else given) and not isinstance(prompt, str)
            make = partial(self._of_chat, options=options)
            messages = cast("Sequence[Mapping[str, Any]]", prompt)
            if shortens:
                prepared = shortened(messages, make, self._context_length)
            else:
                prepared = make(messages)
        else:
            prepared = self._of_text(cast("str | Sequence[int]", prompt), options)
        return replace(prepared, prediction=self._predicted(options.prediction))

    def _of_text(self, prompt: str | Sequence[int], options: GenerationOptions) -> PreparedPrompt:
        """Prepares a text that goes on from a prompt."""
        tokens = self.tokens(prompt)
        structure = options.structure
        grammar = None if structure is None else self._grammars.compile(*structure)
        return PreparedPrompt(tokens, grammar)

    def _of_chat(self, messages: Messages, options: ChatOptions) -> PreparedPrompt:
        """Prepares the answer in a conversation."""
        messages, pictures = self._opened(messages)
        prepared = prepare_chat(
            self._tokenizer,
            self._encoding(pictures),
            lambda: self._grammars,
            messages,
            options,
            self._bundle.target.recurrent,
        )
        tokens = self.tokens(prepared.tokens)
        return replace(prepared, tokens=tokens, look=self._viewer.look(tokens, pictures))

    def chat_tokens(self, messages: Messages) -> list[int]:
        """Converts a conversation to token ids; see `LLM.chat_tokens`.

        Raises:
            EdgespecError: as `prepare`.
        """
        messages, pictures = self._opened(messages)
        return self._encoding(pictures)(self._tokenizer.chat(for_template(messages)))

    def _opened(self, messages: Messages) -> tuple[Messages, list[Picture]]:
        """Returns messages without their pictures, and these."""
        messages, given = taken_out(messages)
        return messages, self._viewer.open(given, self._context_length)

    def _encoding(self, pictures: Sequence[Picture]) -> Callable[[str], list[int]]:
        """Returns what converts texts of the chat template to tokens."""
        return lambda text: self.encoded(self._viewer.written_out(text, pictures))

    def of_infill(
        self,
        prefix: str,
        suffix: str,
        files: Sequence[tuple[str, str]],
        max_new_tokens: int | None,
    ) -> InfillPrompt:
        """Prepares a text at a cursor; see `LLM.infill_prompt`.

        Raises:
            InputError: if the tokenizer has no tokens for filling in, or a text is none.
            ContextLengthError: if the context has no room.
        """
        try:
            pairs = [(name, text) for name, text in files]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"files is {files!r:.80}: give pairs of a name and a text, in a list"
            ) from error
        for text in (prefix, suffix, *(part for pair in pairs for part in pair)):
            if not isinstance(text, str):
                raise InputError(f"{text!r:.80} is no text: give prefix, suffix and files as str")
        length = self._context_length
        room = length - min(max_new_tokens or length, length // 4)
        return self._infill_format.prompt(prefix, suffix, pairs, room)

    def tokens(self, prompt: str | Sequence[int]) -> list[int]:
        """Converts a prompt to token ids.

        Raises:
            InputError: as `valid_ids`.
            ContextLengthError: if it leaves no room for a token.
        """
        if isinstance(prompt, list):  # before each id is looked at
            self._require_room(len(prompt))
        tokens = self.valid_ids(prompt)
        self._require_room(len(tokens))
        return tokens

    def _require_room(self, length: int) -> None:
        if length >= self._context_length:
            raise ContextLengthError(
                f"the prompt is too long: its {length} tokens and a new one are longer than "
                f"the model's context length of {self._context_length}: shorten the prompt"
                f"{or_more_context(self._bundle, self._context_length)}"
            )

    def encoded(self, text: str, add_special: bool = False) -> list[int]:
        """Converts a text to token ids, unless it is so long that it cannot fit the context.

        That is known without converting all of it: from its bytes, since no token stands for more
        than the longest one of the vocabulary, or from the tokens of its beginning.

        Raises:
            InputError: if the text holds lone surrogates.
            ContextLengthError: if it cannot fit the context.
        """
        most = self._context_length
        size = len(text)
        if size > most * USUAL:
            bytes_ = max(_LEAST_LONGEST, self._tokenizer.longest)
            size = len(text.encode(errors="replace"))
            begun = [] if size > most * bytes_ else self._tokenizer.encode(text[: most * USUAL])
            if size > most * bytes_ or len(begun) > 2 * most:
                raise ContextLengthError(
                    f"the text is too long: its {size} bytes are more tokens than the model's "
                    f"context length of {most}: shorten the prompt"
                    f"{or_more_context(self._bundle, most)}"
                )
        return self._tokenizer.encode(text, add_special)

    def valid_ids(self, prompt: str | Sequence[int]) -> list[int]:
        """Converts a prompt of any length, or a text to embed, to token ids.

        Raises:
            InputError: if it is empty, or neither a text nor token ids of the vocabulary.
        """
        # An empty text would become a begin-of-text token alone, which is not a prompt.
        empty = isinstance(prompt, str) and not prompt
        tokens = [] if empty else self._ids(prompt, "the prompt", self._bundle.target.vocab_size)
        if not tokens:
            raise InputError("the prompt is empty: give at least one character")
        return tokens

    def _predicted(self, given: str | Sequence[int] | None) -> list[int]:
        """Converts a prediction to token ids; without one there are none.

        Raises:
            InputError: if it is neither a text nor token ids of the tokenizer.
        """
        if isinstance(given, str):  # the context holds no more of it
            text = given[: self._context_length * USUAL]
            return self._tokenizer.encode(text, add_special=False)
        return [] if given is None else self._ids(given, "prediction", self._tokenizer.vocab_size)

    def _ids(self, given: str | Sequence[int], what: str, vocabulary: int) -> list[int]:
        """Converts a text that begins, or token ids below `vocabulary`; errors call them `what`."""
        if isinstance(given, str):
            return self.encoded(given, add_special=True)
        if isinstance(given, bytes | bytearray | memoryview):  # its items would look like ids
            raise InputError(f"{what} is {bytes(given)!r:.40}, which is not text: decode it")
        try:
            tokens = [operator.index(token) for token in given]
        except TypeError as error:
            raise InputError(
                f"{what} is {reason(repr(given), 80)}: give a text, or token ids in one flat list; "
                "messages are for chat()"
            ) from error
        if wrong := [token for token in tokens if not 0 <= token < vocabulary]:
            raise InputError(f"token id {wrong[0]} is not in the vocabulary of {vocabulary}")
        return tokens

    @cached_property
    def _infill_format(self) -> InfillFormat:
        return InfillFormat(self._tokenizer)

    @cached_property
    def _grammars(self) -> GrammarCompiler:
        return self._made_grammars()


def grammars_of(bundle: Bundle, tokenizer: Tokenizer) -> GrammarCompiler:
    """Returns the compiler of a bundle's grammars.

    With 150 thousand tokens it takes a second to make, in which no other thread goes on.

    Raises:
        EdgespecError: if its texts cannot follow grammars.
    """
    from edgespec.runtime.sampling.grammar import GrammarCompiler

    return GrammarCompiler(bundle.path, tokenizer.vocab_size, bundle.target.eos_ids)
