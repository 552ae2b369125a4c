"""What models have in common whose rows see all of their text: they make vectors, or rank texts."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.manifest import FIRST_TOKEN
from edgespec.bundle.sublayers import ALL
from edgespec.models.config import CLASSIFIER, class_of
from edgespec.models.families.llama import Llama
from edgespec.models.families.partial_rotation import split
from edgespec.models.formats.parts import Parts, TensorRows, stacked
from edgespec.models.layers.sublayers import Mlp, PlainMlp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.config import ModelConfig
    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.decoder import Decoder, Scorer
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.sublayers import Attention

_BARE = "Model"  # what names of classes end with that have no head, as their configs say


class Encoder(Llama):
    """Describes a model that reads a text in one call.

    Attributes:
        prefixes: What names of its tensors may begin with in files, and not in descriptions.
        renamed: What files call parts, as patterns, without these prefixes.
        embedding: Name of the table of tokens.
        fused: Name of what some files have for queries, keys and values of a layer, with a place
            for its number; empty: no files have it.
        labels: Name of the tensor that has a row for each score of a model that ranks; empty: none
            does.
    """

    embeds = True
    prefixes: ClassVar[tuple[str, ...]] = ("model.",)
    renamed: ClassVar[Mapping[str, str]] = {}
    embedding: ClassVar[str] = "embeddings.word_embeddings.weight"
    fused: ClassVar[str] = ""
    labels: ClassVar[str] = ""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, "layers")

    @classmethod
    def inner_name(cls, name: str) -> str:
        """Returns a tensor's name in the description, from that in a file."""
        for each in cls.prefixes:
            name = name.removeprefix(each)
        for pattern, text in cls.renamed.items():
            name = re.sub(pattern, text, name)
        return name

    @classmethod
    def completed(cls, fields: ConfigFields, tensors: TensorSource, embeds: bool) -> ConfigFields:
        """Returns a config with what the weights alone tell.

        Here that is whether a checkpoint ranks whose config names a class without a head, as those
        of Jina's rerankers do, and how many labels there are where it does not say so.

        Args:
            fields: The config.
            tensors: The weights, by their names in the description.
            embeds: Whether files beside them say that it makes embeddings.
        """
        shape = tensors.shape(cls.labels) if cls.labels in tensors.names else ()
        count = shape[0] if shape else 0
        name = class_of(fields)
        told = fields.get("id2label") is not None
        ranks = name.endswith(_BARE) and count == 1 and not embeds
        if ranks or (name.endswith(CLASSIFIER) and not told):
            labels = {str(number): "" for number in range(count)}
            return fields.changed(architectures=[CLASSIFIER], id2label=labels)
        return fields

    @staticmethod
    def ranks(fields: ConfigFields) -> bool:
        """Returns whether a checkpoint scores texts for a query.

        Raises:
            UnsupportedModelError: It tells classes of texts instead.
        """
        if not class_of(fields).endswith(CLASSIFIER):
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

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights; files may have one tensor for queries, keys and values."""
        parts = dict[str, TensorRows]()
        for index in range(self.config.num_layers):
            stored = self.fused.format(index)
            if f"{stored}.weight" not in tensors.names:
                continue
            layers = self.attention(index).linears[:-1]
            biases = {each.bias: each.out_features for each in layers if each.bias}
            parts |= split(f"{stored}.weight", *layers)
            parts |= stacked(f"{stored}.bias", biases) if biases else {}
        return Parts(tensors, parts) if parts else tensors

    @classmethod
    def scored(cls, fields: ConfigFields) -> str:
        """Returns which row of a text scores are made of, one of `POOLINGS`."""
        return FIRST_TOKEN

    def scorer(self) -> Scorer:
        """Returns what makes scores, see `scored`."""
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
