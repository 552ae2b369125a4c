"""What a GGUF file says of a model that makes embeddings, or ranks texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.bundle.manifest import FIRST_TOKEN, LAST_TOKEN, MEAN, Embedding, Reranking
from edgespec.models.formats.gguf.encoders import RANKING, UNTOLD_POOLING, EncoderReader
from edgespec.models.layers.decoder import Dense, Scorer
from edgespec.models.layers.elements import Linear
from edgespec.models.pooled import PoolingConfig

if TYPE_CHECKING:
    from edgespec.models.formats.gguf.config import ConfigReader

# llama.cpp's numbers of ways to pool, besides `RANKING`.
_POOLINGS = {1: MEAN, 2: FIRST_TOKEN, 3: LAST_TOKEN}

_DENSE = 2, 3  # numbers in names of matrices, after the folders of sentence-transformers
_TEMPLATE = "tokenizer.chat_template.rerank"
_PLACES = ("{query}", "{document}")
_SCORES = 1, 2  # how well a text answers, or that and how badly: yes and no


def read_pooling(reader: ConfigReader, both_ways: bool) -> PoolingConfig | None:
    """Returns how embeddings or scores are made with a model; None if it writes text.

    llama.cpp's server normalizes vectors whatever the model, and puts no prompt before texts.

    Args:
        reader: What reads the file's config.
        both_ways: Whether rows of the file's architecture see all of their text.

    Raises:
        UnsupportedModelError: It has another pooling.
        CheckpointError: What makes scores is missing or invalid.
    """
    found = reader.get("pooling_type")
    if isinstance(reader, EncoderReader) and reader.ranks:
        return PoolingConfig(None, ranking=Reranking(FIRST_TOKEN))
    if found in UNTOLD_POOLING:
        return _embedding(reader, MEAN) if both_ways else None
    if found == RANKING and not both_ways:
        return _ranking(reader)
    if not isinstance(found, int) or found not in _POOLINGS:
        raise reader.metadata.unsupported(
            f"{reader.kind}.pooling_type",
            "use a model with 1 (mean), 2 (first token) or 3 (last token)",
        )
    return _embedding(reader, _POOLINGS[found])


def _embedding(reader: ConfigReader, pooling: str) -> PoolingConfig:
    """Returns how a model makes vectors, with the dense layers that the file has."""
    stored = {number: reader.shape(f"dense_{number}.weight") for number in _DENSE}
    dense = tuple(
        Dense(Linear(f"{number}_Dense.linear.weight", shape[-1], shape[0]))
        for number, shape in stored.items()
        if shape
    )
    return PoolingConfig(Embedding(pooling, True, {}), dense=dense)


def _ranking(reader: ConfigReader) -> PoolingConfig:
    """Returns how a model such as Qwen3-Reranker scores texts: by the last row of a template."""
    template = reader.metadata.get(_TEMPLATE)
    if not isinstance(template, str) or not all(each in template for each in _PLACES):
        raise reader.metadata.invalid(_TEMPLATE, f"must be a text with {' and '.join(_PLACES)}")
    scores = reader.rows_of("cls.output.weight")
    if scores not in _SCORES:
        raise reader.metadata.unsupported(
            f"{reader.kind}.pooling_type", f"use a model with one or two scores, not {scores}"
        )
    out = Linear("score.weight", reader.integer("embedding_length"), scores)
    return PoolingConfig(None, ranking=Reranking(LAST_TOKEN, template), scorer=Scorer(out))
