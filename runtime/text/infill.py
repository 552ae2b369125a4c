"""Fill-in-the-middle: prompts for the text at a cursor, in the form that the model learned.

Which form that is follows from the special tokens of the tokenizer. Sources: Qwen2.5-Coder (Hui et
al., 2024), StarCoder (Li et al., 2023), StarCoder2 (Lozhkov et al., 2024), Granite Code (Mishra et
al., 2024), Code Llama (Rozière et al., 2023), DeepSeek-Coder (Guo et al., 2024), CodeGemma (Google,
2024), and Mistral's `mistral-common` for Codestral. A tokenizer may have the tokens although its
model never learned to fill in, as those of Qwen2.5's chat models do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgespec.errors import ContextLengthError, InputError
from edgespec.runtime.text.plain import PlainEncoder
from edgespec.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Form:
    """How a family writes its prompts: names of special tokens, and fields in braces.

    Attributes:
        hole: the file in which text is missing.
        file: another file; empty if the family has no form for several files.
        head: what comes before all files, if there are several.
        lead: what comes before the file in which text is missing, if there are several.
    """

    hole: str
    file: str = ""
    head: str = ""
    lead: str = ""


# The first whose special tokens a tokenizer has is used: those with more tokens come first.
_FORMS = (
    _Form(  # Qwen2.5-Coder
        hole="<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
        head="<|repo_name|>project\n",
        file="<|file_sep|>{name}\n{text}",
        lead="<|file_sep|>filename\n",
    ),
    _Form(  # CodeGemma
        hole="<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
        file="{name}\n{text}<|file_separator|>",
    ),
    _Form(  # Granite 4
        hole="<|fim_prefix|>{prefix}<|fim_suffix|>{suffix}<|fim_middle|>",
    ),
    _Form(  # StarCoder2
        hole="<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
        head="<repo_name>project",
        file="<file_sep>{name}\n{text}",
        lead="<file_sep>",
    ),
    _Form(  # StarCoder, Granite Code
        hole="<fim_prefix>{prefix}<fim_suffix>{suffix}<fim_middle>",
    ),
    _Form(  # Code Llama
        hole="▁<PRE>{prefix}▁<SUF>{suffix}▁<MID>",
    ),
    _Form(  # DeepSeek-Coder
        hole="<｜fim▁begin｜>{prefix}<｜fim▁hole｜>{suffix}<｜fim▁end｜>",  # noqa: RUF001 - its own
    ),
    _Form(  # Codestral
        hole="[SUFFIX]{suffix}[PREFIX]{prefix}",
    ),
)
# The form of files for families without one, as DeepSeek-Coder's model card shows it.
_PLAIN_FILE = "#{name}\n{text}\n"
# Tokens that end what is filled in, besides those of the form and the tokenizer's own end.
_ENDS = (
    "<|endoftext|>", "<|end_of_text|>", "<|fim_pad|>", "<fim_pad>", "▁<EOT>", "<|EOT|>",
)  # fmt: skip
_FIELD = re.compile(r"\{(\w+)\}")
_SPECIAL = re.compile(r"▁?<[^<>\n]+>|\[[A-Z]+\]")
_STEPS = 16  # so many parts of the room are cut from a beginning at a time

_EXAMPLES = "Qwen2.5-Coder, StarCoder2, Code Llama, Granite Code, CodeGemma or Codestral"


@dataclass(frozen=True)
class InfillPrompt:
    """A prompt after which the model writes the text at the cursor.

    Attributes:
        tokens: token ids of the prompt.
        stop_ids: tokens that end the text.
        left_out: number of tokens of files, prefix and suffix that had no room.
    """

    tokens: list[int]
    stop_ids: tuple[int, ...]
    left_out: int


class InfillFormat:
    """A model's form of prompts for the text at a cursor.

    Args:
        tokenizer: the model's tokenizer.

    Raises:
        InputError: if the tokenizer has no tokens for that.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        form = _form_of(tokenizer)
        if form is None:
            raise InputError(
                "the model cannot fill in text: its tokenizer has no tokens for that, such as "
                f"<|fim_prefix|>. Use a model that was trained for it: {_EXAMPLES}"
            )
        self._form = form
        self._tokenizer = tokenizer
        self._plain = PlainEncoder(tokenizer)
        first = tokenizer.encode("")[:1]
        self._begin = first if first == [tokenizer.bos_id] else []
        names = [*_tokens(form), *_ENDS]
        ids = [tokenizer.backend.token_to_id(name) for name in names]
        self.stop_ids = tuple({*(id_ for id_ in ids if id_ is not None), *_own_end(tokenizer)})

    @staticmethod
    def known(tokenizer: Tokenizer) -> bool:
        """Whether a tokenizer has tokens for filling in."""
        return _form_of(tokenizer) is not None

    def prompt(
        self, prefix: str, suffix: str, files: Sequence[tuple[str, str]], room: int
    ) -> InfillPrompt:
        """Returns the prompt for the text between a prefix and a suffix.

        What has no room is left out: first files from the first on, then of prefix and suffix what
        is far from the cursor, so that the suffix keeps a quarter of the room. Beginnings are cut
        in steps, so that they stay as they are while text is typed, and their cache rows in use.

        Args:
            prefix: text before the cursor.
            suffix: text behind it.
            files: names and texts of other files, the most useful last.
            room: maximum number of tokens.

        Raises:
            ContextLengthError: if there is no room for any text.
            InputError: if a text holds lone surrogates.
        """
        form = self._form
        step = max(1, room // _STEPS)
        before = self._plain.encode(prefix)
        behind = self._plain.encode(suffix, inside=True)
        others = [id_ for name, text in files for id_ in self._file(name, text)]
        head, lead = (self._render(each) if files else [] for each in (form.head, form.lead))
        around = self._around_fields(form.hole)
        left = room - len(self._begin) - len(head) - len(lead) - sum(map(len, around))
        if left < 1:
            raise ContextLengthError(
                f"the context has room for {room} tokens of a prompt, which is too few to fill in "
                "text: raise --context"
            )
        most = max(left // 4, left - len(before))
        # In steps, too: some forms have the suffix before the prefix.
        kept_behind = behind if len(behind) <= most else behind[: most // step * step]
        kept_before = _nearest(before, left - len(kept_behind), step)
        kept_others = _nearest(others, left - len(kept_behind) - len(kept_before), step)
        parts = {"prefix": kept_before, "suffix": kept_behind}
        hole = list(around[0])
        for name, rest in zip(_FIELD.findall(form.hole), around[1:], strict=True):
            hole += [*parts[name], *rest]
        kept = len(kept_behind) + len(kept_before) + len(kept_others)
        return InfillPrompt(
            tokens=[*self._begin, *head, *kept_others, *lead, *hole],
            stop_ids=self.stop_ids,
            left_out=len(before) + len(behind) + len(others) - kept,
        )

    def _file(self, name: str, text: str) -> list[int]:
        return self._render(self._form.file or _PLAIN_FILE, name=name, text=text)

    def _render(self, template: str, **fields: str) -> list[int]:
        """Returns the tokens of a template: special tokens by name, and the text between them."""
        ids: list[int] = []
        for part in _split(template):
            if (id_ := self._special(part)) is not None:
                ids.append(id_)
            else:
                text = _FIELD.sub(lambda match: fields[match[1]], part)
                ids += self._plain.encode(text, inside=bool(ids))
        return ids

    def _around_fields(self, template: str) -> list[list[int]]:
        """Returns the special tokens before, between and behind the fields of a template."""
        return [self._render(part) for part in _FIELD.split(template)[::2]]

    def _special(self, name: str) -> int | None:
        return self._tokenizer.backend.token_to_id(name) if _SPECIAL.fullmatch(name) else None


def _split(template: str) -> list[str]:
    """Splits a template into names of special tokens and what is between them."""
    return [part for part in re.split(f"({_SPECIAL.pattern})", template) if part]


def _tokens(form: _Form) -> list[str]:
    """Returns the names of a form's special tokens."""
    return _SPECIAL.findall(form.hole + form.head + form.file + form.lead)


def _form_of(tokenizer: Tokenizer) -> _Form | None:
    """Returns the form whose tokens a tokenizer has, or that its own config names."""
    for form in _FORMS:
        if all(tokenizer.backend.token_to_id(name) is not None for name in _tokens(form)):
            return form
    return _named_form(tokenizer)


def _named_form(tokenizer: Tokenizer) -> _Form | None:
    """Returns the usual form with the tokens that a tokenizer's config or GGUF file names."""
    names = [tokenizer.special_token(name) for name in ("prefix", "suffix", "middle")]
    prefix, suffix, middle = (name if _SPECIAL.fullmatch(name or "") else None for name in names)
    if prefix is None or suffix is None or middle is None:
        return None
    return _Form(hole=f"{prefix}{{prefix}}{suffix}{{suffix}}{middle}")


def _own_end(tokenizer: Tokenizer) -> list[int]:
    return [] if tokenizer.eos_id is None else [tokenizer.eos_id]


def _nearest(tokens: list[int], room: int, step: int) -> list[int]:
    """Returns the end of tokens that fits, cut by whole steps."""
    excess = len(tokens) - max(room, 0)
    return tokens if excess <= 0 else tokens[-(-excess // step) * step :]
