"""Nemotron-H, Nemotron Nano 2, and Nemotron 3 with mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from edgespec.models.families.llama import Llama
from edgespec.models.families.mamba import Mamba
from edgespec.models.families.mixture import experts_of
from edgespec.models.layers.elements import Linear
from edgespec.models.layers.sublayers import MlpAndMoe, Moe, PlainMlp

if TYPE_CHECKING:
    from edgespec.models.config import ModelConfig
    from edgespec.models.fields import ConfigFields
    from edgespec.models.layers.decoder import Decoder
    from edgespec.models.layers.elements import Norm
    from edgespec.models.layers.recurrent import StateSpace
    from edgespec.models.layers.sublayers import Attention

_TYPES = "layers_block_type"
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NAMES = {"linear_attention": "mamba", "full_attention": "attention"}


class NemotronH(Llama):
    """Layers of one part each: a state space, attention without RoPE, or MLPs without gates.

    Such an MLP may be alone, or one that all rows read stands beside a mixture of others.

    transformers limits steps of a prompt, and not those behind it, from below to `time_step_min`;
    here they have no limits, as in NVIDIA's own code.
    """

    defaults = Llama.but(
        vocab_size=131_072,
        hidden_size=4096,
        intermediate_size=21_504,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        mlp_hidden_act="relu2",
        ssm_state_size=128,
        mamba_num_heads=128,
        mamba_head_dim=64,
        mamba_hidden_act="silu",
        n_groups=8,
        conv_kernel=4,
        use_conv_bias=True,
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=7688,
        moe_shared_expert_intermediate_size=7688,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        layer_norm_epsilon=1e-5,
    )

    def __init__(self, config: ModelConfig, layers: str = "backbone.layers") -> None:
        super().__init__(config, layers)

    @classmethod
    def usual(cls, fields: ConfigFields) -> ConfigFields:
        """Returns a config with the types of all layers, which older ones have as signs.

        In `layer_types` MLPs and mixtures are attentions, which have no state either.
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
        still = ("mlp", "moe")
        values["layer_types"] = ["attention" if each in still else each for each in types]
        values["rms_norm_eps"] = fields.number("layer_norm_epsilon")
        values["head_dim"] = fields.integer("head_dim", fields.integer("attention_head_dim", 128))
        return replace(fields, values=values)

    def decoder(self) -> Decoder:
        """Returns the model's description."""
        config = self.config
        fields = self.config.fields
        fields.only({"mlp_hidden_act": ("relu2",)}, "only relu2 is")
        fields.only({"mamba_hidden_act": ("silu",)}, "only silu is")
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
        config = self.config
        name = f"{self.layers}.{index}.mixer"
        hidden = config.hidden_size
        inner = config.heads * config.head_dim
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
        return self.config.mlp_bias and name.endswith((".up_proj", ".down_proj", "_latent_proj"))

    def _part(self, index: int) -> StateSpace | Attention | PlainMlp | MlpAndMoe:
        """Returns the part that a layer consists of."""
        config = self.config
        fields = self.config.fields
        name = f"{self.layers}.{index}.mixer"
        types = fields.get(_TYPES)
        kind = types[index] if isinstance(types, list) else None
        if kind == "attention":
            return self.attention(index)
        if kind == "mlp":
            return replace(self._mlp(name, config.intermediate_size), norm=self._norm(index))
        if kind == "moe":
            return self._mixture(name, self._norm(index))
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

    def _mlp(self, name: str, width: int) -> PlainMlp:
        hidden = self.config.hidden_size
        return PlainMlp(
            norm=None,
            up=self.linear(f"{name}.up_proj", hidden, width),
            down=self.linear(f"{name}.down_proj", width, hidden),
        )

    def _mixture(self, name: str, norm: Norm) -> MlpAndMoe:
        """Returns the experts of a layer, which may read a narrower row, and the one of all."""
        fields = self.config.fields
        hidden = self.config.hidden_size
        if fields.integer("n_group") != fields.integer("topk_group"):
            raise fields.unsupported("n_group", "use a model whose experts are one group")
        count, chosen = experts_of(self.config, ("n_routed_experts",))
        width = fields.integer("moe_intermediate_size", most=2**20)
        narrow = fields.get("moe_latent_size") is not None
        read = fields.integer("moe_latent_size", most=2**20) if narrow else hidden
        ups = (Linear(f"{name}.experts.{n}.up_proj.weight", read, width) for n in range(count))
        downs = (Linear(f"{name}.experts.{n}.down_proj.weight", width, read) for n in range(count))
        moe = Moe(
            norm=None,
            router=Linear(f"{name}.gate.weight", hidden, count),
            experts=tuple(PlainMlp(None, *both) for both in zip(ups, downs, strict=True)),
            top_k=chosen,
            normalized=fields.flag("norm_topk_prob"),
            sigmoid=True,
            least_sum=1e-20,
            choice_bias=f"{name}.gate.e_score_correction_bias",
            output_factor=fields.number("routed_scaling_factor"),
            entry=self.linear(f"{name}.fc1_latent_proj", hidden, read) if narrow else None,
            back=self.linear(f"{name}.fc2_latent_proj", read, hidden) if narrow else None,
        )
        shared = fields.integer("moe_shared_expert_intermediate_size", most=2**20)
        return MlpAndMoe(self._mlp(f"{name}.shared_experts", shared), moe, norm=norm)

    def _norm(self, index: int) -> Norm:
        return self.norm(f"{self.layers}.{index}.norm", self.config.hidden_size)
