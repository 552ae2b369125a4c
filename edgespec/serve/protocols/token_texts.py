"""The text of single tokens, as answers tell it with log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from edgespec.errors import BundleError
from edgespec.runtime.sampling.logprobs import TokenLogprobs
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary.vocabulary import kind_of, spelled
from edgespec.serve.protocols.fields import Json

_REPLACEMENT = "\ufffd"


class TokenTexts:
    r"""Text of single tokens of a tokenizer, as it appears inside a longer text.

    Bytes of a part of a character are written as `\xf0\x9f`, as OpenAI does.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Some decoders drop a space at the beginning of a text, so another token comes first.
        self._before = tokenizer.encode("a", add_special=False)[-1:]
        self._skipped = len(tokenizer.decode(self._before))
        self._kind: str | None = None
        with suppress(BundleError):
            self._kind = kind_of(tokenizer)

    def __getitem__(self, token: int) -> str:
        return self._bytes(token).decode(errors="backslashreplace")

    def key(self, token: int) -> str:
        """Returns the text of a token as completions name it."""
        return key_of(self._bytes(token))

    def data(self, token: int) -> bytes:
        """Returns the bytes that a token adds to a text; special tokens add none."""
        return b"" if token in self._tokenizer.special_ids else self._bytes(token)

    def told(self, logprobs: Sequence[TokenLogprobs]) -> list[Json]:
        """Returns log-probabilities as chats tell them."""

        def one(token: int, logprob: float) -> Json:
            return {"token": self[token], "logprob": logprob, "bytes": list(self.data(token))}

        return [
            {
                "token": name.decode(errors="backslashreplace"),
                "logprob": each.logprob,
                "bytes": list(data),
                "top_logprobs": [one(token, value) for token, value in each.top],
            }
            for each, (data, name) in zip(logprobs, self.parts(logprobs), strict=True)
        ]

    def parts(self, logprobs: Sequence[TokenLogprobs]) -> list[tuple[bytes, bytes]]:
        """Returns the bytes that each token adds to a text, up to its end, and those of its name.

        These are all of the token's, unless the text ends within it.
        """
        found = [self.data(each.token) for each in logprobs]
        beyond = logprobs[-1].beyond if logprobs else 0
        for place in reversed(range(len(found))):  # a character may have begun in an earlier token
            while beyond and found[place]:
                beyond -= found[place][-1] & 0xC0 != 0x80  # the first byte of a character
                found[place] = found[place][:-1]
        return [
            (data, self._bytes(each.token) if data == self.data(each.token) else data)
            for each, data in zip(logprobs, found, strict=True)
        ]

    def shown(self, token: int) -> str:
        """Returns the text of a token as readers see it; special tokens are empty."""
        return self._tokenizer.decode([*self._before, token])[self._skipped :]

    def _bytes(self, token: int) -> bytes:
        whole = self._tokenizer.decode([*self._before, token], skip_special=False)
        text = whole[self._skipped :]
        if _REPLACEMENT in text and self._kind is not None:
            spelling = self._tokenizer.backend.id_to_token(token)
            if spelling is not None and spelling not in self._tokenizer.added_tokens:
                return spelled(spelling, self._kind)
        return text.encode()


def key_of(data: bytes) -> str:
    """Returns a token of these bytes as completions name it."""
    text = data.decode(errors="backslashreplace")
    return text if text.encode() == data else f"bytes:{text}"
