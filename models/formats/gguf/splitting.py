"""How byte-level tokenizers split a text into words, by the names that GGUF files give the ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str, letters: str = r"\p{L}") -> str:
    """Words of letters after one other sign, numbers of some digits, and runs of other signs."""
    other = r"\p{L}\p{N}" if letters == r"\p{L}" else r"\p{L}\p{M}\p{N}"
    return rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^\s{other}]+[\r\n]*|{_REST}"


def _short_words() -> str:
    """As `_words` of single digits, but line ends are no part of a run of other signs."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return rf"{_SHORT}|{before}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_REST}"


def _cases(digits: str, end: str) -> str:
    """Words that also end where a small letter is followed by a capital one."""
    before = r"[^\r\n\p{L}\p{N}]?"
    words = f"{before}{_UPPER}*{_LOWER}+{end}|{before}{_UPPER}+{_LOWER}*{end}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"


@dataclass(frozen=True)
class Splitting:
    """How a text is split into words before their bytes are merged.

    Attributes:
        patterns: Regular expressions, each applied to what the ones before it left between their
            matches and to the matches; empty: as GPT-2 splits.
        digits: Whether each digit is a word, before anything else is split.
        whole: Whether a word that is a token is taken as it is, whatever its merges.
        begins: Whether texts begin with the beginning-of-text token, if the file does not say so.
        normalized: Whether texts are brought into Unicode's form C first. The original tokenizers
            do that where llama.cpp does not.
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    whole: bool = False
    begins: bool = False
    normalized: bool = False

    def normalizer(self) -> dict[str, object] | None:
        """Returns the normalizer of tokenizer.json."""
        return {"type": "NFC"} if self.normalized else None

    def pre_tokenizer(self) -> dict[str, object]:
        """Returns the pre-tokenizer of tokenizer.json, whose last step writes bytes as letters."""
        split: list[dict[str, object]] = [
            {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
            for each in self.patterns
        ]
        if self.digits:
            split.insert(0, {"type": "Digits", "individual_digits": True})
        last = {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": not self.patterns,
        }
        return {"type": "Sequence", "pretokenizers": [*split, last]}


_GPT2 = Splitting()
_DIGITS = Splitting(digits=True)
_LLAMA3 = Splitting((_words(r"\p{N}{1,3}"),), whole=True, begins=True)
_CL100K = Splitting((_words(r"\p{N}{1,3}"),))
_QWEN2 = Splitting((_words(r"\p{N}"),), normalized=True)
_DEEPSEEK = Splitting(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}",
    )
)

SPLITTINGS: Mapping[str, Splitting] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "exaone4": _GPT2,
    "granite-docling": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": Splitting(digits=True, normalized=True),
    "exaone": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "lfm2": _LLAMA3,
    "pixtral": _LLAMA3,
    "olmo": Splitting(normalized=True),
    "smaug-bpe": _CL100K,
    "dbrx": _CL100K,
    "glm4": _CL100K,
    "chatglm-bpe": _CL100K,
    "qwen2": _QWEN2,
    "stablelm2": _QWEN2,
    "seed-coder": Splitting((_short_words(),)),
    "qwen35": Splitting((_words(r"\p{N}", r"[\p{L}\p{M}]"),), normalized=True),
    "deepseek-r1-qwen": Splitting((_words(r"\p{N}"),)),
    "gpt-4o": Splitting((_cases(r"\p{N}{1,3}", f"{_SHORT}?"),)),
    "tekken": Splitting((_cases(r"\p{N}", ""),), whole=True, begins=True),
    "deepseek-v3": _DEEPSEEK,
    "hunyuan-dense": _DEEPSEEK,
}
"""What `tokenizer.ggml.pre` stands for."""
