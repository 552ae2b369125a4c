"""What makes rows of pictures in Gemma 4: a ViT over a picture of any proportions.

A row stands for a square of patches, whose mean it is made of; a picture has as many rows as its
proportions allow below a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.bundle.manifest import Pixels
from edgespec.models.elements import Compound, Linear, Norm, Shapes
from edgespec.models.tensors import check_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import Fields
    from edgespec.models.tensors import TensorSource

GEMMA4 = "gemma4"
"""The name of the whole model."""

_COLOURS = 3
_MOST_ROWS, _MOST_SIDE = 1120, 128  # of a picture; pixels of a row's side
_VIT, _PATCHES = "model.vision_tower", ".patch_embedder.input_proj.weight"
_PROJECTION = "embed_vision.embedding_projection.weight"
_ACTIVATION, _ROPE = "gelu_pytorch_tanh", "axial"
# Default values of transformers.
_SIZES: Mapping[str, object] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16,
    "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64,
    "hidden_activation": _ACTIVATION, "rms_norm_eps": 1e-6, "pooling_kernel_size": 3,
    "patch_size": 16, "position_embedding_size": 10_240,
}  # fmt: skip
PIXELS: Mapping[str, object] = {
    "max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3, "resample": 3,
    "rescale_factor": 1 / 255, "do_normalize": False,
}  # fmt: skip
"""Default values of transformers, of what becomes of pictures before."""


@dataclass(frozen=True)
class ClippedLinear(Linear):
    """A matrix whose inputs and products are kept between bounds that the checkpoint has.

    Their names end with `input_min`, `input_max`, `output_min` and `output_max`.
    """

    def bounds(self, side: str) -> tuple[str, str]:
        """Returns names of the smallest and the largest `input` or `output`, tensors of one."""
        name = self.weight.removesuffix("linear.weight")
        return f"{name}{side}_min", f"{name}{side}_max"

    def tensors(self) -> Shapes:
        """Returns names and shapes of its tensors."""
        names = (*self.bounds("input"), *self.bounds("output"))
        return {**super().tensors(), **dict.fromkeys(names, ())}


@dataclass(frozen=True)
class PatchLayer(Compound):
    """A layer of the ViT.

    `x + post_norm(o(attention(norm(x))))`, then
    `x + mlp_post_norm(down(gelu(gate(mlp_norm(x))) * up(mlp_norm(x))))`.
    """

    norm: Norm
    q: Linear
    k: Linear
    v: Linear
    q_norm: Norm
    k_norm: Norm
    v_norm: Norm
    o: Linear
    post_norm: Norm
    mlp_norm: Norm
    gate: Linear
    up: Linear
    down: Linear
    mlp_post_norm: Norm


@dataclass(frozen=True)
class PatchTower(Compound):
    """What makes rows of a picture, of its patches and their places.

    Attributes:
        source: The weights.
        pixels: What becomes of pictures before; `size`: of a side of a row's square.
        patch: Pixels of a side of a patch.
        rows: Largest number of rows of a picture.
        heads: Number of heads.
        inv_freq: Frequencies by which each half of a head is rotated, the first one by the place
            from the left, the second one by that from the top.
        embedding: [patch² * 3] to [width].
        positions: Name of the [2, places, width] tensor of what is added by place.
        places: Number of places; a picture has fewer.
        layers: The layers.
        standard: Names of what is subtracted from means of patches and of what they are multiplied
            by then, [width] each; None: nothing is.
        norm: Behind that.
        projection: To the text part's [hidden].
        token: Token that stands in texts where a row is read, and for a whole picture before.
        around: Tokens before and behind rows of a picture.
        together: Whether rows of a picture see each other in layers with a window.
        blank: Token whose layers' own inputs are those of the rows.
    """

    source: TensorSource
    pixels: Pixels
    patch: int
    rows: int
    heads: int
    inv_freq: tuple[float, ...]
    embedding: Linear
    positions: str
    places: int
    layers: tuple[PatchLayer, ...]
    standard: tuple[str, str] | None
    norm: Norm
    projection: Linear
    token: int
    around: tuple[int, int]
    together: bool
    blank: int

    @property
    def side(self) -> int:
        """Patches of a side of a row's square."""
        return self.pixels.size // self.patch

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        width = self.embedding.out_features
        standard = dict.fromkeys(self.standard or (), (width,))
        return {**super().tensors(), self.positions: (2, self.places, width), **standard}


def read_patch_tower(
    source: TensorSource, fields: Fields, found: Fields, resample: int
) -> PatchTower:
    """Reads what makes rows of pictures, and checks its tensors.

    Args:
        source: The weights.
        fields: The config of the whole model.
        found: What becomes of pictures before, with its `PIXELS`.
        resample: Pillow's number of the filter by which they are resized.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    own, text = fields.group("vision_config").with_defaults(_SIZES), fields.group("text_config")
    patch, side = own.integer("patch_size"), own.integer("pooling_kernel_size")
    for name in ("patch_size", "pooling_kernel_size"):
        if found.integer(name) != own.integer(name):
            raise found.invalid(name, f"contradicts {name}={own.get(name)} of the config")
    if patch * side > _MOST_SIDE:
        raise own.invalid("patch_size", f"times {side} must be {_MOST_SIDE} or less")
    rows = found.integer("max_soft_tokens", most=_MOST_ROWS)
    places = own.integer("position_embedding_size")
    if places < rows * side:
        raise own.invalid("position_embedding_size", f"must be {rows * side} or more")
    name = next((n.removesuffix(_PATCHES) for n in source.names if n.endswith(_PATCHES)), _VIT)
    vectors = _LayersOf(own, name)
    last = text.integer("vocab_size", 262_144) - 1
    around = (
        fields.integer("boi_token_id", 255_999, last),
        fields.integer("eoi_token_id", 258_882, last),
    )
    projection = next((n for n in source.names if n.endswith(_PROJECTION)), f"model.{_PROJECTION}")
    width = vectors.width
    tower = PatchTower(
        source=source,
        pixels=Pixels(patch * side, 0, False, *_colours(found), resample),
        patch=patch,
        rows=rows,
        heads=vectors.heads,
        inv_freq=vectors.inv_freq(),
        embedding=Linear(f"{name}{_PATCHES}", _COLOURS * patch**2, width),
        positions=f"{name}.patch_embedder.position_embedding_table",
        places=places,
        layers=tuple(map(vectors.layer, range(own.integer("num_hidden_layers")))),
        standard=(f"{name}.std_bias", f"{name}.std_scale") if own.flag("standardize") else None,
        norm=Norm("", width, vectors.eps),
        projection=Linear(projection, width, text.integer("hidden_size", 2304)),
        token=fields.integer("image_token_id", 258_880, last),
        around=around,
        together=text.get("use_bidirectional_attention") == "vision",
        blank=0 if text.get("pad_token_id") in (None, 0) else text.integer("pad_token_id", 0, last),
    )
    check_shapes(source, tower.tensors())
    return tower


def _colours(found: Fields) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns what is subtracted from colours and what they are divided by then.

    Both hold what the model does itself, which is to double what is left of a half.
    """
    if not found.flag("do_normalize"):
        return (0.5,) * _COLOURS, (0.5,) * _COLOURS
    mean, std = found.numbers("image_mean", _COLOURS), found.numbers("image_std", _COLOURS)
    halves = tuple(each / 2 for each in std)
    return tuple(m + half for m, half in zip(mean, halves, strict=True)), halves


class _LayersOf:
    """Describes the layers of a ViT whose tensors' names begin so."""

    def __init__(self, fields: Fields, name: str) -> None:
        self.width, self.eps = fields.integer("hidden_size"), fields.number("rms_norm_eps")
        self.heads, self._head = fields.integer("num_attention_heads"), fields.integer("head_dim")
        self._inner, self._fields, self._name = fields.integer("intermediate_size"), fields, name
        self._linear = ClippedLinear if fields.flag("use_clipped_linears") else Linear
        if fields.get("hidden_activation") != _ACTIVATION:
            raise fields.unsupported("hidden_activation", f"use {_ACTIVATION}")
        if fields.get("num_key_value_heads") != self.heads:
            raise fields.unsupported("num_key_value_heads", f"use {self.heads}, as many as heads")
        if self._head % 4:
            raise fields.unsupported("head_dim", "use one that is a multiple of 4")

    def inv_freq(self) -> tuple[float, ...]:
        """Returns the frequencies by which halves of heads are rotated."""
        rope = self._fields.group("rope_parameters")
        if rope.get("rope_type") not in (None, "default", _ROPE):
            raise rope.unsupported("rope_type", f"use {_ROPE}")
        theta, half = rope.number("rope_theta", 100.0), self._head // 2
        return tuple(theta ** (-each / half) for each in range(0, half, 2))

    def layer(self, number: int) -> PatchLayer:
        """Returns the description of a layer."""
        inner = self.heads * self._head
        name = f"{self._name}.encoder.layers.{number}"
        attention, mlp = f"{name}.self_attn", f"{name}.mlp"
        q, k, v = (
            self._linear(f"{attention}.{each}_proj.linear.weight", self.width, inner)
            for each in "qkv"
        )
        gate, up = (
            self._linear(f"{mlp}.{each}_proj.linear.weight", self.width, self._inner)
            for each in ("gate", "up")
        )
        before, behind, mlp_before, mlp_behind = (
            Norm(f"{name}.{each}_layernorm.weight", self.width, self.eps)
            for each in ("input", "post_attention", "pre_feedforward", "post_feedforward")
        )
        return PatchLayer(
            norm=before,
            q=q,
            k=k,
            v=v,
            q_norm=Norm(f"{attention}.q_norm.weight", self._head, self.eps),
            k_norm=Norm(f"{attention}.k_norm.weight", self._head, self.eps),
            v_norm=Norm("", self._head, self.eps),
            o=self._linear(f"{attention}.o_proj.linear.weight", inner, self.width),
            post_norm=behind,
            mlp_norm=mlp_before,
            gate=gate,
            up=up,
            down=self._linear(f"{mlp}.down_proj.linear.weight", self._inner, self.width),
            mlp_post_norm=mlp_behind,
        )
