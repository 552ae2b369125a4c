"""Random vocabularies of SentencePiece, as large as those of published models."""

from __future__ import annotations

from typing import Any

import numpy as np
from gguf import TokenType

SPACE = "\u2581"
_LETTERS = f"{SPACE}etaoinshrdlucmfwypvbgkjqxzETAO.,"
_LONGEST = 16  # letters of a token
_SPECIAL = {"<unk>": TokenType.UNKNOWN, "<s>": TokenType.CONTROL, "</s>": TokenType.CONTROL}


def pieces_metadata(count: int) -> dict[str, Any]:
    """Fields of a GGUF file with so many tokens, most of which several pairs of others make.

    Args:
        count: Number of tokens, such as Gemma's 262,144.
    """
    runs = [SPACE * length for length in range(2, 32)]
    uses = {
        **_SPECIAL,
        **dict.fromkeys(runs, TokenType.USER_DEFINED),
        **{f"<0x{byte:02X}>": TokenType.BYTE for byte in range(256)},
        **dict.fromkeys(_LETTERS, TokenType.NORMAL),
    }
    words = list(_LETTERS)
    random = np.random.default_rng(0)
    while len(uses) < count:
        for left, right in random.random((count, 2)) ** 4:  # the first ones are the most common
            word = words[int(left * len(words))] + words[int(right * len(words))]
            if len(word) <= _LONGEST and word not in uses and SPACE not in word[1:]:
                uses[word] = TokenType.NORMAL
                words.append(word)
            if len(uses) == count:
                break
    place = "tokenizer.ggml"
    ranks = dict(zip(words, range(count), strict=False))
    return {
        f"{place}.model": "llama",
        f"{place}.tokens": list(uses),
        f"{place}.token_type": [int(use) for use in uses.values()],
        f"{place}.scores": [-float(ranks.get(token, 0)) for token in uses],
        f"{place}.unknown_token_id": 0,
        f"{place}.bos_token_id": 1,
        f"{place}.eos_token_id": 2,
        f"{place}.add_space_prefix": False,
    }
