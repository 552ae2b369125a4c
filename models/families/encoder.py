"""What models have in common whose rows see all of their text: they make vectors, or rank texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.sublayers import ALL
from edgespec.models.families.llama import Llama
from edgespec.models.layers.sublayers import Mlp, PlainMlp

if TYPE_CHECKING:
    from edgespec.models.config import ModelConfig
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder, Scorer
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.sublayers import Attention

_RANKING = "ForSequenceClassification"


class Encoder(Llama):
    """Describes a model that reads a text in one call.

    Attributes:
        prefixes: What names of its tensors may begin with in files, and not in descriptions.
        embedding: Name of the table of tokens.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("model.",)
    embedding: ClassVar[str] = "embeddings.word_embeddings.weight"

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, "layers")

    @classmethod
    def inner_name(cls, name: str) -> str:
        """Returns a tensor's name in the description, from that in a file."""
        for each in cls.prefixes:
            name = name.removeprefix(each)
        return name

    @staticmethod
    def ranks(fields: ConfigFields) -> bool:
        """Returns whether a checkpoint scores texts for a query.

        Raises:
            UnsupportedModelError: It tells classes of texts instead.
        """
        named = fields.get("architectures")
        found = named[0] if isinstance(named, list) and named else ""
        if not str(found).endswith(_RANKING):
            return False
        labels = fields.get("id2label")
        if not isinstance(labels, dict) or len(labels) != 1:
            raise fields.unsupported("id2label", "use a model with one label, which ranks texts")
        return True

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        made = super().decoder()
        made = replace(
            made,
            embedding=self.embedding,
            lm_head=replace(made.lm_head, weight=self.embedding),
        )
        return replace(made, scorer=self.scorer()) if self.ranks(self.config.fields) else made

    def scorer(self) -> Scorer:
        """Returns what makes scores of the first token's row."""
        raise self.config.fields.unsupported("architectures", "use a model that makes embeddings")

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        return replace(super().attention(index), mask=ALL)

    def norm_at_end(self, decoder: Decoder) -> Decoder:
        """Returns a description with the norm behind its last sum as that of the whole model."""
        *layers, (attention, mlp) = decoder.layers
        assert isinstance(mlp, Mlp | PlainMlp)
        assert mlp.sum_norm is not None
        last = replace(mlp, sum_norm=None)
        return replace(decoder, layers=(*layers, (attention, last)), norm=mlp.sum_norm)

    def own_norm(self, name: str) -> Norm:
        """Returns the norm of that name of rows of the stream."""
        return self.norm(name, self.config.hidden_size)
