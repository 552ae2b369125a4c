"""The part of checkpoints that reads pictures: a ViT and a projection (Idefics3, SmolVLM).

A picture becomes square pieces, and a piece rows that the text part reads in place of embeddings.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.models.fields import Fields
from edgespec.models.layers import Compound, LayerNorm, Linear, Shapes
from edgespec.models.safetensors_folder import SafetensorsFolder
from edgespec.models.tensors import check_shapes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from edgespec.models.tensors import TensorSource

_log = logging.getLogger(__name__)

SPLITTING = ("idefics3", "smolvlm")
"""Each `model_type` whose pictures are cut into pieces, and whose pieces become fewer rows than
they have patches."""

_VIT, _PROJECTION = "model.vision_model", "model.connector.modality_projection.proj.weight"
_COLOURS = 3
_MOST_PIXELS = 4096  # of a side, as transformers has it
# Default values of transformers.
_SIZES: Mapping[str, object] = {
    "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 16, "image_size": 224, "patch_size": 32,
    "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
}  # fmt: skip
_PIXELS: Mapping[str, object] = {
    "size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}, "resample": 1,
    "do_image_splitting": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    "rescale_factor": 1 / 255,
}  # fmt: skip
# What is always done here: a checkpoint that asks for less is refused.
_DONE = ("do_resize", "do_rescale", "do_normalize", "do_convert_rgb")
_FILTERS = 6  # of Pillow


@dataclass(frozen=True)
class TowerLayer(Compound):
    """A layer of a ViT: `x + o(attention(norm(x)))`, then `x + down(gelu(up(mlp_norm(x))))`."""

    norm: LayerNorm
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    mlp_norm: LayerNorm
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Pixels:
    """What becomes of a picture before the tower reads it.

    Attributes:
        size: Pixels of a side of a piece.
        longest: Pixels of a picture's longer side, in which it is before it is cut.
        split: Whether it is cut into pieces, with the whole picture as the last one; else the whole
            picture is the only piece.
        mean: What is subtracted from each colour, which is between 0 and 1.
        std: What each colour is divided by then.
        resample: Pillow's number of the filter by which pictures are resized.
    """

    size: int
    longest: int
    split: bool
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: int


@dataclass(frozen=True)
class Tower(Compound):
    """What makes rows of a piece (SigLIP: Zhai et al., 2023; pixel shuffle: Shi et al., 2016).

    Attributes:
        source: The weights.
        pixels: What becomes of pictures before.
        token: Token that stands in texts where such a row is read.
        patch: Pixels of a side of a patch.
        side: Patches of a side of a piece.
        factor: So many patches by so many are a row together.
        heads: Number of heads.
        width: Size of a patch's row.
        layers: The layers.
        norm: Behind the last one.
        projection: [factor² * width] to the text part's [hidden].
    """

    source: TensorSource
    pixels: Pixels
    token: int
    patch: int
    side: int
    factor: int
    heads: int
    width: int
    layers: tuple[TowerLayer, ...]
    norm: LayerNorm
    projection: Linear

    embedding = f"{_VIT}.embeddings.patch_embedding"
    positions = f"{_VIT}.embeddings.position_embedding.weight"

    @property
    def rows(self) -> int:
        """Number of rows of a piece."""
        return (self.side // self.factor) ** 2

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        return {
            f"{self.embedding}.weight": (self.width, _COLOURS, self.patch, self.patch),
            f"{self.embedding}.bias": (self.width,),
            self.positions: (self.side**2, self.width),
            **super().tensors(),
        }


def read_tower(path: Path, fields: Fields) -> Tower | None:
    """Reads what makes rows of pictures, and checks its tensors.

    Args:
        path: The checkpoint's folder.
        fields: The config of the whole model.

    Returns:
        None if the model has none that is known here, or lacks the file that says what becomes of
        pictures before; a log says so.

    Raises:
        UnsupportedModelError: It needs something that is not implemented.
        CheckpointError: Something is missing, damaged or inconsistent.
    """
    if fields.get("model_type") not in SPLITTING:
        return None
    pixels = _pixels(path)
    if pixels is None:
        _log.warning("%s has no preprocessor_config.json, so that it reads texts alone", path)
        return None
    own = fields.group("vision_config").with_defaults(_SIZES)
    width, inner = own.integer("hidden_size"), own.integer("intermediate_size")
    size, patch = own.integer("image_size"), own.integer("patch_size")
    heads, eps = own.integer("num_attention_heads"), own.number("layer_norm_eps")
    side, factor = size // patch, fields.integer("scale_factor", 2)
    text = fields.group("text_config")
    token = fields.integer("image_token_id", most=text.integer("vocab_size") - 1)
    if own.get("hidden_act") != _SIZES["hidden_act"]:
        raise own.unsupported("hidden_act", f"use {_SIZES['hidden_act']}")
    if width % heads:
        raise own.invalid("num_attention_heads", f"must divide hidden_size={width}")
    if pixels.size // patch != side:
        raise own.unsupported("image_size", f"use pieces of {pixels.size} pixels, as pictures have")
    if not side or side % factor:
        raise fields.invalid("scale_factor", f"must divide the {side} patches of a side")

    def norm(name: str) -> LayerNorm:
        return LayerNorm(f"{_VIT}.{name}.weight", width, eps, bias=f"{_VIT}.{name}.bias")

    def layer(number: int) -> TowerLayer:
        name = f"encoder.layers.{number}"

        def linear(part: str, columns: int = width, rows: int = width) -> Linear:
            whole = f"{_VIT}.{name}.{part}"
            return Linear(f"{whole}.weight", columns, rows, f"{whole}.bias")

        q, k, v, o = (linear(f"self_attn.{each}_proj") for each in ("q", "k", "v", "out"))
        up, down = linear("mlp.fc1", width, inner), linear("mlp.fc2", inner, width)
        first, second = norm(f"{name}.layer_norm1"), norm(f"{name}.layer_norm2")
        return TowerLayer(first, q, k, v, o, second, up, down)

    tower = Tower(
        SafetensorsFolder(path), pixels, token, patch, side, factor,
        heads, width, tuple(map(layer, range(own.integer("num_hidden_layers")))),
        norm("post_layernorm"),
        Linear(_PROJECTION, factor**2 * width, text.integer("hidden_size")),
    )  # fmt: skip
    check_shapes(tower.source, tower.tensors())
    return tower


def _pixels(path: Path) -> Pixels | None:
    """Reads what becomes of pictures; newer checkpoints have it in a processor's file."""
    old, new = path / "preprocessor_config.json", path / "processor_config.json"
    found = Fields.read(old) if old.is_file() else None
    if found is None and new.is_file():
        found = Fields.read(new).group("image_processor")
    if found is None or not found.values:
        return None
    found = found.with_defaults(_PIXELS)
    for name in _DONE:
        if found.get(name) is False:
            raise found.unsupported(name, "use a checkpoint whose pictures are prepared as usual")
    if abs(found.number("rescale_factor") * 255 - 1) > 1e-6:
        raise found.unsupported("rescale_factor", "use 1 / 255")
    resample = found.get("resample")
    if resample not in range(_FILTERS):
        raise found.invalid("resample", "must be the number of a filter of Pillow")
    assert isinstance(resample, int), "it is a number"
    return Pixels(
        found.group("max_image_size").integer("longest_edge", most=_MOST_PIXELS),
        found.group("size").integer("longest_edge", most=_MOST_PIXELS),
        found.get("do_image_splitting") is not False,
        found.numbers("image_mean", _COLOURS),
        found.numbers("image_std", _COLOURS),
        resample,
    )
