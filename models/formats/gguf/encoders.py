"""Models in GGUF files whose rows see all of their text: those that make vectors, or rank texts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.errors import CheckpointError
from edgespec.models.formats.gguf.config import ConfigReader
from edgespec.models.formats.gguf.names import Naming

if TYPE_CHECKING:
    from collections.abc import Mapping

RANKING = 4
"""llama.cpp's number of the way to pool that is a ranking."""

UNTOLD_POOLING = (None, 0)
"""What files have there that leave the way to who runs the model."""

_SCORES = "cls.output.weight"
_DENSE = "cls.weight"  # behind which scores are made


class EncoderReader(ConfigReader):
    """BERT and what is stored as BERT: RoBERTa and XLM-RoBERTa, whose first places are left out."""

    @property
    def ranks(self) -> bool:
        """Whether it scores texts, as the tensors tell where the file says nothing of pooling."""
        told = self.get("pooling_type")
        held = bool(self.shape(_SCORES) or self.shape(_DENSE))
        return held if told in UNTOLD_POOLING else told == RANKING

    def special(self) -> dict[str, object]:
        """See `ConfigReader`."""
        parts: dict[str, object] = {"type_vocab_size": self.rows_of("token_types.weight")}
        if not self.ranks:
            return parts
        for name in (_SCORES, _DENSE):
            if not self.shape(name):
                raise CheckpointError(
                    f"{self.metadata.source} has no tensor {name}, as llama.cpp leaves out a layer "
                    "of rerankers of BERT and of Jina's first ones: use the model's folder"
                )
        labels = {str(number): "" for number in range(self.rows_of(_SCORES))}
        return {**parts, "architectures": ["BertForSequenceClassification"], "id2label": labels}


_OF_TOKENS = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
}
_BERT = Naming(
    "bert",
    {
        "attn_qkv": "attention.self.Wqkv",
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
    layers="encoder.layer",
    model={
        **_OF_TOKENS,
        "position_embd": "embeddings.position_embeddings",
        "cls": "pooler.dense",
        "cls.output": "classifier",
    },
    layer_norm=True,
    both_ways=True,
)
_NOMIC = Naming(
    "nomic_bert",
    {
        "attn_qkv": "self_attn.Wqkv",
        "attn_output_norm": "post_attention_layernorm",
        "layer_output_norm": "post_mlp_layernorm",
    },
    layers="layers",
    model=_OF_TOKENS,
    layer_norm=True,
    both_ways=True,
)

ENCODERS: Mapping[str, Naming] = {
    "bert": _BERT,
    "jina-bert-v2": replace(
        _BERT,
        layer={
            **_BERT.layer,
            "attn_q_norm": "attention.self.layer_norm_q",
            "attn_k_norm": "attention.self.layer_norm_k",
            "attn_norm_2": "layer_norm_1",
            "ffn_gate": "mlp.gated_layers_w",
            "ffn_up": "mlp.gated_layers",
            "ffn_down": "mlp.wo",
            "layer_output_norm": "mlp.layernorm",
        },
        present={"use_qk_norm": "attn_q_norm.weight"},
        constants={"position_embedding_type": "alibi", "feed_forward_type": "geglu"},
    ),
    "jina-bert-v3": replace(_NOMIC, model_type="jina_embeddings_v3"),
    "nomic-bert": _NOMIC,
}
"""Their architectures, see `ARCHITECTURES`."""
