"""What makes scores of texts in folders of models that rank."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edgespec.bundle.manifest import LAST_TOKEN, Reranking
from edgespec.errors import CheckpointError
from edgespec.models.formats.parts import Parts, TensorRows
from edgespec.models.layers.decoder import Scorer
from edgespec.models.layers.elements import Linear
from edgespec.models.pooled import UNTOLD, PoolingConfig

if TYPE_CHECKING:
    from edgespec.models.families.encoder import Encoder
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder

_ANSWERS = "answers.weight"  # rows of the output projection


def by_encoder(
    architecture: type[Encoder], fields: ConfigFields, pooled: PoolingConfig | None
) -> PoolingConfig | None:
    """Returns how a model whose rows see both ways scores texts, or else what is given.

    One whose files say how its rows become vectors scores none.
    """
    makes_vectors = pooled is not None and pooled.embedding is not None and pooled is not UNTOLD
    if pooled is None or makes_vectors or not architecture.ranks(fields):
        return pooled
    return PoolingConfig(None, pooled.length, Reranking(architecture.scored(fields)))


def by_last_token(fields: ConfigFields, pooled: PoolingConfig | None) -> PoolingConfig:
    """Returns how a decoder scores texts that transformers gives a score of its last row."""
    found = pooled or PoolingConfig(None, ranking=Reranking(LAST_TOKEN))
    score = Linear("score.weight", fields.integer("hidden_size"), 1)
    return replace(found, scorer=Scorer(score))


def answered(
    fields: ConfigFields, decoder: Decoder, tensors: TensorSource, answers: tuple[int, ...]
) -> tuple[Decoder, TensorSource]:
    """Returns a model whose scores are its logits of some tokens, and weights with these rows.

    Args:
        fields: The config, for messages.
        decoder: The model that has logits of all tokens.
        tensors: Its weights.
        answers: See `PoolingConfig`.

    Raises:
        UnsupportedModelError: Its logits are more than products.
        CheckpointError: The model has no such tokens.
    """
    head = decoder.lm_head
    rows = decoder.vocab_size
    if max(answers) >= rows:
        raise CheckpointError(
            f"{fields.source}: scores are the logits of token {max(answers)}, and the model has "
            f"{rows} tokens: download the checkpoint again"
        )
    if head.bias is not None or decoder.logit_softcap is not None:
        raise fields.unsupported("model_type", "use a reranker whose logits are plain products")
    scorer = Scorer(Linear(_ANSWERS, decoder.hidden_size, len(answers)))
    unread = replace(head, weight=decoder.embedding)
    parts = {_ANSWERS: TensorRows(head.weight, np.array(answers, np.int64), rows)}
    return replace(decoder, scorer=scorer, lm_head=unread, tied=True), Parts(tensors, parts)
