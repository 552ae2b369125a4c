"""Models that transformers does not have, or does not find by their configs."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from transformers import (
    CONFIG_MAPPING,
    GraniteConfig,
    GraniteForCausalLM,
    Mistral4ForCausalLM,
    Qwen2_5_VLTextConfig,
    Qwen2_5_VLTextModel,
    Qwen3VLMoeTextConfig,
    Qwen3VLMoeTextModel,
    Qwen3VLTextConfig,
    Qwen3VLTextModel,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLPreTrainedModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLPreTrainedModel
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoePreTrainedModel


class MiniCPMConfig(GraniteConfig):
    """Of MiniCPM, whose code is beside its weights: Granite with factors under other names."""

    model_type = "minicpm"
    tie_word_embeddings: bool = True
    scale_emb: float = 1.0
    scale_depth: float = 1.0
    dim_model_base: int = 1

    def __post_init__(self, **fields: Any) -> None:
        self.embedding_multiplier = self.scale_emb
        self.residual_multiplier = self.scale_depth / self.num_hidden_layers**0.5
        self.logits_scaling = self.hidden_size / self.dim_model_base
        head_dim = fields.get("head_dim") or self.hidden_size // self.num_attention_heads
        self.attention_multiplier = head_dim**-0.5
        super().__post_init__(**fields)


class MiniCPMForCausalLM(GraniteForCausalLM):
    """MiniCPM."""

    config_class = MiniCPMConfig


CONFIG_MAPPING.register("minicpm", MiniCPMConfig)


class TextOfQwenVL:
    """A text part of Qwen-VL, which transformers has no model of."""

    text_model: ClassVar[type]
    _tied_weights_keys: ClassVar = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.text_model(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: torch.Tensor, **options: Any) -> CausalLMOutput:
        rows = self.model(input_ids, **options).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(rows))


class Qwen2_5VLForCausalLM(TextOfQwenVL, Qwen2_5_VLPreTrainedModel):  # noqa: N801
    """Of Qwen2.5-VL."""

    config_class, text_model = Qwen2_5_VLTextConfig, Qwen2_5_VLTextModel


class Qwen3VLForCausalLM(TextOfQwenVL, Qwen3VLPreTrainedModel):
    """Without experts."""

    config_class, text_model = Qwen3VLTextConfig, Qwen3VLTextModel


class Qwen3VLMoeForCausalLM(TextOfQwenVL, Qwen3VLMoePreTrainedModel):
    """With experts."""

    config_class, text_model = Qwen3VLMoeTextConfig, Qwen3VLMoeTextModel


TEXT_MODELS = {
    "minicpm": MiniCPMForCausalLM,
    "mistral4": Mistral4ForCausalLM,
    "qwen2_5_vl_text": Qwen2_5VLForCausalLM,
    "qwen3_vl_moe_text": Qwen3VLMoeForCausalLM,
    "qwen3_vl_text": Qwen3VLForCausalLM,
}
"""Their classes by `model_type`."""
