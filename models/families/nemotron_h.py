"""Nemotron-H and Nemotron Nano 2, without experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from edgespec.models.families.llama import Llama
from edgespec.models.families.mamba import Mamba
from edgespec.models.layers import PlainMlp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.config import ModelConfig
    from edgespec.models.elements import Norm
    from edgespec.models.fields import Fields
    from edgespec.models.layers import Attention, Decoder, StateSpace

_TYPES = "layers_block_type"
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}


class NemotronH(Llama):
    """Layers of one part each: a state space, attention without RoPE, or an MLP without a gate.

    transformers limits steps of a prompt, and not those behind it, from below to `time_step_min`;
    here they have no limits, as in NVIDIA's own code.
    """

    defaults: ClassVar[Mapping[str, object]] = {
        "vocab_size": 131_072,
        "hidden_size": 4096,
        "intermediate_size": 21_504,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 4096,
        "mlp_hidden_act": "relu2",
        "ssm_state_size": 128,
        "mamba_num_heads": 128,
        "mamba_head_dim": 64,
        "mamba_hidden_act": "silu",
        "n_groups": 8,
        "conv_kernel": 4,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "eos_token_id": 2,
    }

    def __init__(self, config: ModelConfig, layers: str = "backbone.layers") -> None:
        super().__init__(config, layers)

    @classmethod
    def usual(cls, fields: Fields) -> Fields:
        """Returns a config with the types of all layers, which older ones have as signs.

        In `layer_types` MLPs are attentions, which have no state either.
        """
        values = dict(fields.values)
        pattern = fields.get("hybrid_override_pattern")
        types = next((each for each in map(fields.get, (_TYPES, "layer_types")) if each), None)
        if types is None and isinstance(pattern, str):
            types = [_PATTERN.get(sign, sign) for sign in pattern]
        if not isinstance(types, list) or not types:
            raise fields.invalid(_TYPES, "must be a list of layers")
        types = [_NAMES.get(each, each) for each in types]
        values[_TYPES] = types
        values["num_hidden_layers"] = len(types)
        values["layer_types"] = ["attention" if each == "mlp" else each for each in types]
        values["rms_norm_eps"] = fields.number("layer_norm_epsilon")
        values["head_dim"] = fields.integer("head_dim", fields.integer("attention_head_dim", 128))
        return replace(fields, values=values)

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        config, fields = self.config, self.config.fields
        for name, only in (("mlp_hidden_act", "relu2"), ("mamba_hidden_act", "silu")):
            if fields.get(name) != only:
                raise fields.unsupported(name, f"only {only} is")
        decoder = self.of_layers((self._part(index),) for index in range(config.num_layers))
        embedding = "backbone.embeddings.weight"
        return replace(
            decoder,
            embedding=embedding,
            norm=self.norm("backbone.norm_f", config.hidden_size),
            lm_head=replace(decoder.lm_head, weight=embedding) if config.tied else decoder.lm_head,
        )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer."""
        config, name = self.config, f"{self.layers}.{index}.mixer"
        hidden, inner = config.hidden_size, config.heads * config.head_dim
        kv_inner = config.kv_heads * config.head_dim
        return replace(
            super().attention(index),
            norm=self._norm(index),
            q=self.linear(f"{name}.q_proj", hidden, inner),
            k=self.linear(f"{name}.k_proj", hidden, kv_inner),
            v=self.linear(f"{name}.v_proj", hidden, kv_inner),
            o=self.linear(f"{name}.o_proj", inner, hidden),
            rope="",
        )

    def has_bias(self, name: str) -> bool:
        """Returns whether a projection has a bias; those of attention never have."""
        return self.config.mlp_bias and name.endswith((".up_proj", ".down_proj"))

    def _part(self, index: int) -> StateSpace | Attention | PlainMlp:
        """Returns the part that a layer consists of."""
        config, fields, name = self.config, self.config.fields, f"{self.layers}.{index}.mixer"
        types = fields.get(_TYPES)
        kind = types[index] if isinstance(types, list) else None
        if kind == "attention":
            return self.attention(index)
        if kind == "mlp":
            hidden, inner = config.hidden_size, config.intermediate_size
            return PlainMlp(
                norm=self._norm(index),
                up=self.linear(f"{name}.up_proj", hidden, inner),
                down=self.linear(f"{name}.down_proj", inner, hidden),
            )
        mamba = Mamba(
            heads=fields.integer("mamba_num_heads"),
            head_size=fields.integer("mamba_head_dim"),
            groups=fields.integer("n_groups"),
            state_size=fields.integer("ssm_state_size"),
            kernel=fields.integer("conv_kernel"),
            conv_bias=fields.flag("use_conv_bias"),
            bias=fields.flag("use_bias"),
        )
        return mamba.layer(self, name, self._norm(index))

    def _norm(self, index: int) -> Norm:
        return self.norm(f"{self.layers}.{index}.norm", self.config.hidden_size)
