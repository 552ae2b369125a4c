"""EuroBERT: Llama whose rows see all of their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.bundle.manifest import FIRST_TOKEN, MEAN
from edgespec.models.families.llama_bidirec import LlamaBidirec
from edgespec.models.layers.decoder import Scorer
from edgespec.models.layers.elements import Linear

if TYPE_CHECKING:
    from edgespec.models.fields import ConfigFields

_POOLING = "classifier_pooling"


class EuroBert(LlamaBidirec):
    """Describes a EuroBERT checkpoint."""

    models = "EuroBERT 210M, 610M and 2.1B, and embedding models and rerankers made of them"
    defaults = LlamaBidirec.but(
        vocab_size=128_256,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        eos_token_id=128_001,
        classifier_pooling="late",
    )
    labels = "classifier.weight"

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """See `Llama`: its published code has another name for a field."""
        return fields.under({"clf_pooling": _POOLING})

    @classmethod
    def scored(cls, fields: ConfigFields) -> str:
        """See `Encoder`: the mean of rows or, where pooling is late, of their scores."""
        return FIRST_TOKEN if cls.usual(fields).get(_POOLING) == "bos" else MEAN

    def scorer(self) -> Scorer:
        """See `Encoder`."""
        fields = self.config.fields
        known: dict[str, tuple[object, ...]] = {_POOLING: ("bos", "mean", "late")}
        fields.only(known, "use a model that ranks by the first token, the mean or all")
        hidden = self.config.hidden_size
        return Scorer(
            out=Linear("classifier.weight", hidden, 1, "classifier.bias"),
            dense=Linear("dense.weight", hidden, hidden, "dense.bias"),
            activation="gelu",
            of_mean=fields.get(_POOLING) == "mean",
        )
