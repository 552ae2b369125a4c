"""gpt-oss."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from edgespec.models.families.llama import Llama
from edgespec.models.families.mixture import experts_of
from edgespec.models.formats.expert_tensors import ExpertRows, ExpertTensors, Stack
from edgespec.models.layers.elements import ClampedSwiglu, Linear
from edgespec.models.layers.sublayers import Mlp, Moe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edgespec.models.formats.expert_tensors import ByteSource, Layout
    from edgespec.models.formats.tensors import TensorSource
    from edgespec.models.layers.sublayers import Attention

_ROPE = {
    "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096,
}  # fmt: skip


class GptOss(Llama):
    """Llama with biases, sinks, windows in every other layer, and a mixture of experts.

    Files hold all experts of a layer in one tensor, in which rows of gate and up take turns: as
    [experts, in, out], or in MXFP4 as [experts, out, in].
    """

    defaults = Llama.but(
        head_dim=64,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        attention_bias=True,
        sliding_window=128,
        sliding_window_pattern=2,
        num_experts_per_tok=4,
        swiglu_alpha=1.702,
        swiglu_limit=7.0,
        rope_parameters=_ROPE,
        eos_token_id=None,
    )

    def attention(self, index: int) -> Attention:
        """Returns the attention of a layer, with sinks."""
        return replace(super().attention(index), sinks=f"model.layers.{index}.self_attn.sinks")

    def feed_forward(self, index: int) -> Moe:
        """Returns the mixture of experts of a layer."""
        config = self.config
        name = f"model.layers.{index}"
        hidden = config.hidden_size
        width = config.intermediate_size
        count, chosen = self._experts
        activation = ClampedSwiglu(
            config.fields.number("swiglu_alpha"), config.fields.number("swiglu_limit")
        )

        def linear(expert: int, kind: str, in_features: int, out_features: int) -> Linear:
            own = f"{name}.mlp.experts.{expert}.{kind}"
            return Linear(f"{own}.weight", in_features, out_features, f"{own}.bias")

        return Moe(
            norm=self.norm(f"{name}.post_attention_layernorm", hidden),
            router=Linear(f"{name}.mlp.router.weight", hidden, count, f"{name}.mlp.router.bias"),
            experts=tuple(
                Mlp(
                    norm=None,
                    gate=linear(expert, "gate_proj", hidden, width),
                    up=linear(expert, "up_proj", hidden, width),
                    down=linear(expert, "down_proj", width, hidden),
                    activation=activation,
                )
                for expert in range(count)
            ),
            top_k=chosen,
            normalized=True,
        )

    def arranged(self, tensors: TensorSource) -> TensorSource:
        """Returns the weights with each expert's matrices and biases as tensors of their own."""
        if self.feed_forward(0).experts[0].down.weight in tensors.names:  # as in GGUF files
            return tensors
        method = self.config.fields.group("quantization_config").get("quant_method")
        layout: Layout = "mxfp4" if method == "mxfp4" else "columns"
        layers = range(self.config.num_layers)
        parts = dict(part for layer in layers for part in self._parts(layer, layout))
        return ExpertTensors(cast("ByteSource", tensors), parts)

    @property
    def _experts(self) -> tuple[int, int]:
        return experts_of(self.config, ("num_local_experts", "num_experts"))

    def _parts(self, layer: int, layout: Layout) -> Iterator[tuple[str, ExpertRows]]:
        count, _ = self._experts
        hidden = self.config.hidden_size
        width = self.config.intermediate_size
        name = f"model.layers.{layer}.mlp.experts"
        shapes = {"gate_up_proj": (count, 2 * width, hidden), "down_proj": (count, hidden, width)}
        for kind, shape in shapes.items():
            stacks = {
                "weight": Stack(f"{name}.{kind}", layout, shape),
                "bias": Stack(f"{name}.{kind}_bias", "rows", shape[:2]),
            }
            turns = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
            for expert in range(count):
                for start, turn in enumerate(turns):
                    for part, stack in stacks.items():
                        rows = shape[1] // len(turns)
                        yield (
                            f"{name}.{expert}.{turn}.{part}",
                            ExpertRows(stack, expert, start, len(turns), rows),
                        )
