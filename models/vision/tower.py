"""The part of checkpoints that reads pictures: a ViT and a projection (Idefics3, SmolVLM, Gemma 3).

`models/vision/reading.py` names those of other models.

A picture becomes square pieces, and a piece rows that the text part reads in place of embeddings.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgespec.bundle.pictures import Pixels
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.tensors import check_shapes
from edgespec.models.layers.elements import (
    Compound,
    LayerNorm,
    Linear,
    Norm,
    PlainActivation,
    Shapes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgespec.models.formats.tensors import TensorSource

_log = logging.getLogger(__name__)

MOST_PIXELS = 4096
"""Pixels of a side, as transformers has it."""

WHOLE = "gemma3"
"""The name of a whole model whose pictures are not cut."""

_VIT, _PROJECTION = "model.vision_model", "model.connector.modality_projection.proj.weight"
_PATCHES = ".embeddings.patch_embedding.weight"  # how a name ends whose beginning others have
_MEAN_PROJECTION = "multi_modal_projector.mm_input_projection_weight"
_COLOURS = 3
# Default values of transformers.
_SIZES: Mapping[str, object] = {
    "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 16, "image_size": 224, "patch_size": 32,
    "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
}  # fmt: skip
PIECES: Mapping[str, object] = {
    "size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}, "resample": 1,
    "do_image_splitting": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "rescale_factor": 1 / 255,
}  # fmt: skip
"""Default values of transformers, of what becomes of pictures before."""
_GEMMA_SIZES: Mapping[str, object] = {
    **_SIZES, "hidden_size": 768, "num_attention_heads": 12, "patch_size": 16,
}  # fmt: skip
# What is always done here: a checkpoint that asks for less is refused.
_DONE = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
_FILTERS = 6  # of Pillow


@dataclass(frozen=True)
class TowerLayer(Compound):
    """A layer of a ViT: `x + o(attention(norm(x)))`, then `x + down(gelu(up(mlp_norm(x))))`.

    Attributes:
        qkv: Makes queries, keys and values: three matrices, or one that is theirs together.
        gate: Makes what `up` is multiplied by, behind SiLU, in place of GELU; None: nothing does.
        activation: What is done behind `up` where there is no gate.
        heads_norms: Of all queries and of all keys of a row; None: there are none.
        factors: Names of what is multiplied with what the layer adds, [width] each, behind
            attention and behind the MLP (LayerScale: Touvron et al., 2021); None: nothing is.
    """

    norm: Norm
    qkv: tuple[Linear, ...]
    o: Linear
    mlp_norm: Norm
    up: Linear
    down: Linear
    gate: Linear | None = None
    activation: PlainActivation = "gelu_tanh"
    heads_norms: tuple[Norm, Norm] | None = None
    factors: tuple[str, str] | None = None

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        return {**super().tensors(), **dict.fromkeys(self.factors or (), (self.o.out_features,))}


@dataclass(frozen=True)
class Tower(Compound):
    """What makes rows of a piece (SigLIP: Zhai et al., 2023; pixel shuffle: Shi et al., 2016).

    Attributes:
        name: What names of the ViT's tensors begin with.
        source: The weights.
        pixels: What becomes of pictures before.
        patch: Pixels of a side of a patch.
        side: Patches of a side of a piece.
        heads: Number of heads.
        width: Size of a patch's row.
        layers: The layers.
        norm: Behind the last one.
        token: Token that stands in texts where a row of a piece is read.
        factor: So many patches by so many are such a row together.
        projection: [factor² * width] to the text part's [hidden].
        mean_norm: Applied to the mean of these patches, which is what the projection reads; its
            weight is [width, hidden] then. None: it reads all of them, one behind the other.
        around: Tokens before and behind rows of a picture, of which the first stands in texts for
            the whole; None: see `runtime/vision/`.
    """

    name: str
    source: TensorSource
    pixels: Pixels
    patch: int
    side: int
    heads: int
    width: int
    layers: tuple[TowerLayer, ...]
    norm: LayerNorm
    token: int
    factor: int
    projection: Linear
    mean_norm: Norm | None = None
    around: tuple[int, int] | None = None
    grid: ClassVar[None] = None

    @property
    def embedding(self) -> str:
        """What names of the tensors begin with that make rows of patches."""
        return f"{self.name}.embeddings.patch_embedding"

    @property
    def positions(self) -> str:
        """Name of the rows that are added, by position."""
        return f"{self.name}.embeddings.position_embedding.weight"

    @property
    def together(self) -> bool:
        """Whether rows of a picture see each other."""
        return self.around is not None

    @property
    def rows(self) -> int:
        """Number of rows of a piece."""
        return (self.side // self.factor) ** 2

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        turned = self.projection.in_features, self.projection.out_features
        return {
            f"{self.embedding}.weight": (self.width, _COLOURS, self.patch, self.patch),
            f"{self.embedding}.bias": (self.width,),
            self.positions: (self.side**2, self.width),
            **super().tensors(),
            **({} if self.mean_norm is None else {self.projection.weight: turned}),
        }


def tower_of(fields: ConfigFields, pixels: Pixels, source: TensorSource) -> Tower:
    """Describes what makes rows of pictures, and checks its tensors.

    Args:
        fields: The config of the whole model.
        pixels: What becomes of pictures before.
        source: The weights, by names of transformers.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    kind = fields.get("model_type")
    own = fields.group("vision_config").with_defaults(_GEMMA_SIZES if kind == WHOLE else _SIZES)
    vit = next((name.removesuffix(_PATCHES) for name in source.names if _PATCHES in name), _VIT)
    patch = own.integer("patch_size")
    width = own.integer("hidden_size")
    side = own.integer("image_size") // patch
    if own.get("hidden_act") != _SIZES["hidden_act"]:
        raise own.unsupported("hidden_act", f"use {_SIZES['hidden_act']}")
    heads = heads_of(own)
    if not side or pixels.size // patch != side:
        raise own.unsupported("image_size", f"use pieces of {pixels.size} pixels, as pictures have")
    layers = range(own.integer("num_hidden_layers"))
    vectors = SiglipLayers(own, vit)
    joined = _averaged if kind == WHOLE else _shuffled
    tower = Tower(
        vit,
        source,
        pixels,
        patch,
        side,
        heads,
        width,
        tuple(map(vectors.layer, layers)),
        vectors.norm("post_layernorm"),
        *joined(fields, source, side, width, vectors.eps),
    )
    check_shapes(source, tower.tensors())
    return tower


class SiglipLayers:
    """Describes the layers of a ViT of SigLIP's.

    Args:
        fields: The ViT's config.
        vit: What names of its tensors begin with.
    """

    def __init__(self, fields: ConfigFields, vit: str) -> None:
        self._width = fields.integer("hidden_size")
        self._inner = fields.integer("intermediate_size")
        self._vit = vit
        self.eps = fields.number("layer_norm_eps")

    def norm(self, name: str) -> LayerNorm:
        """Returns the norm of that name."""
        whole = f"{self._vit}.{name}"
        return LayerNorm(f"{whole}.weight", self._width, self.eps, bias=f"{whole}.bias")

    def layer(self, number: int) -> TowerLayer:
        """Returns a layer."""
        name = f"encoder.layers.{number}"
        width = self._width
        inner = self._inner
        q, k, v, o = (
            self._linear(f"{name}.self_attn.{each}_proj", width, width)
            for each in ("q", "k", "v", "out")
        )
        up = self._linear(f"{name}.mlp.fc1", width, inner)
        down = self._linear(f"{name}.mlp.fc2", inner, width)
        first = self.norm(f"{name}.layer_norm1")
        second = self.norm(f"{name}.layer_norm2")
        return TowerLayer(first, (q, k, v), o, second, up, down)

    def _linear(self, name: str, columns: int, rows: int) -> Linear:
        whole = f"{self._vit}.{name}"
        return Linear(f"{whole}.weight", columns, rows, f"{whole}.bias")


_Joined = tuple[int, int, Linear, Norm | None, tuple[int, int] | None]
"""The last fields of a `Tower`, from `token` on."""


def _shuffled(
    fields: ConfigFields, _source: TensorSource, side: int, width: int, _eps: float
) -> _Joined:
    """Describes the projection of several patches, one behind the other."""
    text = fields.group("text_config")
    factor = fields.integer("scale_factor", 2)
    if side % factor:
        raise fields.invalid("scale_factor", f"must divide the {side} patches of a side")
    token = fields.integer("image_token_id", most=text.integer("vocab_size") - 1)
    projection = Linear(_PROJECTION, factor**2 * width, text.integer("hidden_size"))
    return token, factor, projection, None, None


def _averaged(
    fields: ConfigFields, source: TensorSource, side: int, width: int, eps: float
) -> _Joined:
    """Describes the projection of the mean of several patches."""
    text = fields.group("text_config")
    count = fields.integer("mm_tokens_per_image", 256)
    factor = side // max(round(count**0.5), 1) or 1
    if factor**2 * count != side**2:
        raise fields.invalid("mm_tokens_per_image", f"contradicts {side} patches of a side")
    last = text.integer("vocab_size", 262_208) - 1
    token = fields.integer("image_token_index", 262_144, last)
    begin = fields.integer("boi_token_index", 255_999, last)
    end = fields.integer("eoi_token_index", 256_000, last)
    name = next(
        (each for each in source.names if each.endswith(_MEAN_PROJECTION)), _MEAN_PROJECTION
    )
    projection = Linear(name, width, text.integer("hidden_size", 2304))
    norm = f"{name.removesuffix(_MEAN_PROJECTION)}multi_modal_projector.mm_soft_emb_norm.weight"
    return token, factor, projection, Norm(norm, width, eps, offset=1.0), (begin, end)


def picture_settings(path: Path, defaults: Mapping[str, object]) -> ConfigFields | None:
    """Reads what becomes of pictures; newer checkpoints have it in a processor's file.

    Args:
        path: The checkpoint's folder.
        defaults: Values of fields that are absent.

    Returns:
        None if the folder has no such file; a log says so.

    Raises:
        UnsupportedModelError, CheckpointError: See `tower_of`.
    """
    old = path / "preprocessor_config.json"
    new = path / "processor_config.json"
    found = ConfigFields.read(old) if old.is_file() else None
    if found is None and new.is_file():
        found = ConfigFields.read(new).group("image_processor")
    if found is None or not found.values:
        _log.warning("%s has no preprocessor_config.json, so that it reads texts alone", path)
        return None
    found = found.with_defaults(defaults)
    for name in _DONE:
        if found.get(name) is False and defaults.get(name) is not False:
            raise found.unsupported(name, "use a checkpoint whose pictures are prepared as usual")
    if abs(found.number("rescale_factor") * 255 - 1) > 1e-6:
        raise found.unsupported("rescale_factor", "use 1 / 255")
    resample = found.get("resample")
    if not isinstance(resample, int) or resample not in range(_FILTERS):
        raise found.invalid("resample", "must be the number of a filter of Pillow")
    return found


def heads_of(own: ConfigFields) -> int:
    """Returns the number of heads of a tower.

    Raises:
        CheckpointError: They do not divide its width.
    """
    heads = own.integer("num_attention_heads")
    width = own.integer("hidden_size")
    if width % heads:
        raise own.invalid("num_attention_heads", f"must divide hidden_size={width}")
    return heads


def colours(found: ConfigFields) -> tuple[tuple[float, ...], tuple[float, ...], int]:
    """Returns the last fields of `Pixels`, from `mean` on."""
    resample = found.get("resample")
    assert isinstance(resample, int), "it was checked"
    return found.numbers("image_mean", _COLOURS), found.numbers("image_std", _COLOURS), resample


def read_pieces(source: TensorSource, fields: ConfigFields, settings: ConfigFields) -> Tower:
    """Reads the tower of a model whose pictures are cut into pieces; see `tower_of`."""
    size = settings.group("max_image_size").integer("longest_edge", most=MOST_PIXELS)
    longest = settings.group("size").integer("longest_edge", most=MOST_PIXELS)
    split = settings.get("do_image_splitting") is not False
    return tower_of(fields, Pixels(size, longest, split, *colours(settings)), source)


def read_whole(source: TensorSource, fields: ConfigFields, settings: ConfigFields) -> Tower:
    """Reads the tower of a model whose pictures are one piece each; see `tower_of`."""
    if settings.get("do_pan_and_scan"):
        raise settings.unsupported("do_pan_and_scan", "use a checkpoint that leaves pictures whole")
    sizes = settings.group("size")
    size = sizes.integer("height", most=MOST_PIXELS)
    if sizes.get("width") != size:
        raise sizes.unsupported("width", f"use {size}, as the height is")
    return tower_of(fields, Pixels(size, 0, False, *colours(settings)), source)
