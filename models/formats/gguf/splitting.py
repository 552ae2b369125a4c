"""How byte-level tokenizers split a text into words, by the names that GGUF files give the ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"

# Letters with two cases, as DeepSeek's first tokenizers list them.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"


def _words(digits: str, letters: str = r"\p{L}") -> str:
    """Words of letters after one other sign, numbers of some digits, and runs of other signs."""
    other = r"\p{L}\p{N}" if letters == r"\p{L}" else r"\p{L}\p{M}\p{N}"
    return rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^\s{other}]+[\r\n]*|{_REST}"


def _short_words() -> str:
    """As `_words` of single digits, but line ends are no part of a run of other signs."""
    before = r"[^\r\n\p{L}\p{N}]?"
    return rf"{_SHORT}|{before}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_REST}"


def _cases(digits: str, end: str, without: str = "", breaks: str = r"\r\n/") -> str:
    """Words that also end where a small letter is followed by a capital one.

    Args:
        digits: Numbers.
        end: What a word may end with.
        without: Letters that are in no such word, as a class.
        breaks: What a run of other signs may end with.
    """
    before = r"[^\r\n\p{L}\p{N}]?"
    less = f"&&[^{without}]" if without else ""
    upper, lower = (f"[{each}{less}]" for each in (_UPPER, _LOWER))
    words = f"{before}{upper}*{lower}+{end}|{before}{upper}+{lower}*{end}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[{breaks}]*|{_REST}"


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
_GPT4O = Splitting((_cases(r"\p{N}{1,3}", f"{_SHORT}?"),))
_HAN = r"\p{Han}"
_KIMI = Splitting(
    (rf"{_HAN}+|" + _cases(r"\p{N}{1,3}", f"{_SHORT}?", without=_HAN, breaks=r"\r\n"),),
    whole=True,
)
_DEEPSEEK = Splitting(
    (
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_REST}",
    )
)
_DEEPSEEK_LLM = Splitting(
    (
        r"[\r\n]",
        rf"\s?[{_CASED}]+",
        r"\s?[!-/:-~" + "\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _EAST_ASIAN,
        r"\p{N}",
    )
)
_DEEPSEEK_CODER = Splitting((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}"))

SPLITTINGS: Mapping[str, Splitting] = {
    "gpt-2": _GPT2,
    "phi-2": _GPT2,
    "a.x-4.0": _GPT2,
    "exaone4": _GPT2,
    "gigachat": _GPT2,
    "granite-docling": _GPT2,
    "jina-v2-code": _GPT2,
    "jina-v2-de": _GPT2,
    "jina-v2-es": _GPT2,
    "mellum": _GPT2,
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
    "falcon-h1": _LLAMA3,
    "midm-2.0": _LLAMA3,
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
    "gpt-4o": _GPT4O,
    "llama4": _GPT4O,
    "kimi-k2": _KIMI,
    "tekken": Splitting((_cases(r"\p{N}", ""),), whole=True, begins=True),
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-v3": _DEEPSEEK,
    "hunyuan-dense": _DEEPSEEK,
}
"""What `tokenizer.ggml.pre` stands for."""
