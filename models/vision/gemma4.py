"""What makes rows of pictures in Gemma 4: a ViT over a picture of any proportions.

A row stands for a square of patches, whose mean it is made of; a picture has as many rows as its
proportions allow below a number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.pictures import Pixels
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.layers.elements import Compound, Linear, Norm, Shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource

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

    Attributes:
        bound: Shape of each: none, or of one number as in GGUF files.
    """

    bound: tuple[int, ...] = ()

    def bounds(self, side: str) -> tuple[str, str]:
        """Returns names of the smallest and the largest `input` or `output`, tensors of one."""
        name = self.weight.removesuffix("linear.weight")
        return f"{name}{side}_min", f"{name}{side}_max"

    def tensors(self) -> Shapes:
        """Returns names and shapes of its tensors."""
        names = (*self.bounds("input"), *self.bounds("output"))
        return {**super().tensors(), **dict.fromkeys(names, self.bound)}


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
class InProportion:
    """What all have that makes rows of pictures which keep their proportions.

    Attributes:
        source: The weights.
        pixels: What becomes of pictures before; `size`: of a side of a row's square.
        patch: Pixels of a side of a patch.
        rows: Largest number of rows of a picture.
        token: Token that stands in texts where a row is read, and for a whole picture before.
        around: Tokens before and behind rows of a picture.
        together: Whether rows of a picture see each other.
    """

    source: TensorSource
    pixels: Pixels
    patch: int
    rows: int
    token: int
    around: tuple[int, int]
    together: bool
    grid: ClassVar[None] = None

    @property
    def side(self) -> int:
        """Patches of a side of a row's square."""
        return self.pixels.size // self.patch


@dataclass(frozen=True)
class PatchTower(InProportion, Compound):
    """What makes rows of a picture, of its patches and their places.

    Rows see each other in layers with a window alone.

    Attributes:
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
        blank: Token whose layers' own inputs are those of the rows.
    """

    heads: int
    inv_freq: tuple[float, ...]
    embedding: Linear
    positions: str
    places: int
    layers: tuple[PatchLayer, ...]
    standard: tuple[str, str] | None
    norm: Norm
    projection: Linear
    blank: int

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        width = self.embedding.out_features
        standard = dict.fromkeys(self.standard or (), (width,))
        return {**super().tensors(), self.positions: (2, self.places, width), **standard}


def in_proportion(
    source: TensorSource, fields: ConfigFields, found: ConfigFields, own: ConfigFields
) -> InProportion:
    """Reads what all have.

    Args:
        source: See `read_patch_tower`.
        fields: See there.
        found: See there.
        own: The config of the part that reads pictures.

    Raises:
        CheckpointError: Something is missing or inconsistent.
    """
    patch = own.integer("patch_size")
    side = own.integer("pooling_kernel_size")
    for name in ("patch_size", "pooling_kernel_size"):
        if found.integer(name) != own.integer(name):
            raise found.invalid(name, f"contradicts {name}={own.get(name)} of the config")
    if patch * side > _MOST_SIDE:
        raise own.invalid("patch_size", f"times {side} must be {_MOST_SIDE} or less")
    text = fields.group("text_config")
    last = text.integer("vocab_size", 262_144) - 1
    around = (
        fields.integer("boi_token_id", 255_999, last),
        fields.integer("eoi_token_id", 258_882, last),
    )
    mean = (0.0,) * _COLOURS
    std = (1.0,) * _COLOURS
    resample = found.get("resample")
    assert isinstance(resample, int), "it was checked"
    if found.flag("do_normalize"):
        mean = found.numbers("image_mean", _COLOURS)
        std = found.numbers("image_std", _COLOURS)
    return InProportion(
        source=source,
        pixels=Pixels(patch * side, 0, False, mean, std, resample),
        patch=patch,
        rows=found.integer("max_soft_tokens", most=_MOST_ROWS),
        token=fields.integer("image_token_id", 258_880, last),
        around=around,
        together=text.get("use_bidirectional_attention") == "vision",
    )


def projection_of(source: TensorSource, text: ConfigFields, width: int) -> Linear:
    """Returns what makes the text part's rows of rows of this width."""
    name = next((n for n in source.names if n.endswith(_PROJECTION)), f"model.{_PROJECTION}")
    return Linear(name, width, text.integer("hidden_size", 2304))


def read_patch_tower(source: TensorSource, fields: ConfigFields, found: ConfigFields) -> PatchTower:
    """Reads what makes rows of pictures, and checks its tensors.

    Args:
        source: The weights.
        fields: The config of the whole model.
        found: What becomes of pictures before, with its `PIXELS`.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    own = fields.group("vision_config").with_defaults(_SIZES)
    text = fields.group("text_config")
    shared = in_proportion(source, fields, found, own)
    places = own.integer("position_embedding_size")
    most = shared.rows * shared.side
    if places < most:
        raise own.invalid("position_embedding_size", f"must be {most} or more")
    name = next((n.removesuffix(_PATCHES) for n in source.names if n.endswith(_PATCHES)), _VIT)
    vectors = _LayersOf(own, name, source)
    last = text.integer("vocab_size", 262_144) - 1
    width = vectors.width
    tower = PatchTower(
        **{**vars(shared), "pixels": _doubled(shared.pixels)},
        heads=vectors.heads,
        inv_freq=vectors.inv_freq(),
        embedding=Linear(f"{name}{_PATCHES}", _COLOURS * shared.patch**2, width),
        positions=f"{name}.patch_embedder.position_embedding_table",
        places=places,
        layers=tuple(map(vectors.layer, range(own.integer("num_hidden_layers")))),
        standard=(f"{name}.std_bias", f"{name}.std_scale") if own.flag("standardize") else None,
        norm=Norm("", width, vectors.eps),
        projection=projection_of(source, text, width),
        blank=0 if text.get("pad_token_id") in (None, 0) else text.integer("pad_token_id", 0, last),
    )
    check_shapes(source, tower.tensors())
    return tower


def _doubled(pixels: Pixels) -> Pixels:
    """Returns what becomes of pictures with what the model does itself: 2 * (x - 1 / 2)."""
    halves = tuple(each / 2 for each in pixels.std)
    mean = tuple(m + half for m, half in zip(pixels.mean, halves, strict=True))
    return replace(pixels, mean=mean, std=halves)


class _LayersOf:
    """Describes the layers of a ViT whose tensors' names begin so."""

    def __init__(self, fields: ConfigFields, name: str, source: TensorSource) -> None:
        self.width = fields.integer("hidden_size")
        self.eps = fields.number("rms_norm_eps")
        self.heads = fields.integer("num_attention_heads")
        self._head = fields.integer("head_dim")
        self._inner = fields.integer("intermediate_size")
        self._fields = fields
        self._name = name
        self._linear: Callable[[str, int, int], Linear] = Linear
        if fields.flag("use_clipped_linears"):
            alone = any(source.shape(n) == (1,) for n in source.names if n.endswith(".input_min"))
            self._linear = partial(ClippedLinear, bound=(1,) if alone else ())
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
        theta = rope.number("rope_theta", 100.0)
        half = self._head // 2
        return tuple(theta ** (-each / half) for each in range(0, half, 2))

    def layer(self, number: int) -> PatchLayer:
        """Returns the description of a layer."""
        inner = self.heads * self._head
        name = f"{self._name}.encoder.layers.{number}"
        attention = f"{name}.self_attn"
        mlp = f"{name}.mlp"
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
