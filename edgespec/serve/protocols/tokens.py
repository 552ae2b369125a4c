"""`POST /tokenize` and `/detokenize`: a text in a model's tokens, and back."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edgespec.errors import InputError
from edgespec.serve.protocols.fields import LONG, Fields, Json, Whole
from edgespec.serve.served_model import ServedModel


class TokenizeRequest(Fields):
    """`POST /tokenize`, as llama-server has it (llama.cpp, tools/server/README.md)."""

    model: str | None = None
    # A longer one's tokens are given back in more than 0.1 s, while no other thread can go on.
    content: Annotated[str, Field(max_length=500_000)]
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(Fields):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Field(ge=0)]], LONG, Whole]


def tokenized(body: TokenizeRequest, model: ServedModel) -> Json:
    """Returns the tokens of a text, perhaps each with what it stands for."""
    tokenizer = model.tokenizer
    if body.parse_special is False:
        ids = model.plain_encoder.encode(body.content)
        if body.add_special:
            ids = [*tokenizer.encode(""), *ids]
    else:
        ids = tokenizer.encode(body.content, add_special=bool(body.add_special))
    if not body.with_pieces:
        return {"tokens": ids}
    told = {each: {"id": each, "piece": _piece(model, each)} for each in set(ids)}
    return {"tokens": [told[each] for each in ids]}


def detokenized(body: DetokenizeRequest, model: ServedModel) -> Json:
    """Returns the text of tokens.

    Raises:
        InputError: if a token is not in the vocabulary.
    """
    tokenizer = model.tokenizer
    for id_ in body.tokens:
        if id_ >= tokenizer.vocab_size:
            raise InputError(f"token id {id_} is not in the vocabulary of {tokenizer.vocab_size}")
    return {"content": tokenizer.decode(body.tokens, skip_special=False)}


def _piece(model: ServedModel, id_: int) -> str | list[int]:
    """Returns the text of a token; its bytes if they are not whole characters."""
    piece = model.vocabulary.bytes_of([id_])
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
