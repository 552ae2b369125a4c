"""What makes rows of pictures in Gemma 4 12B: no ViT, but norms and matrices of each square."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edgespec.models.formats.tensors import check_shapes
from edgespec.models.layers.elements import Compound, LayerNorm, Linear, Norm, Shapes
from edgespec.models.vision.gemma4 import InProportion, in_proportion, projection_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from edgespec.models.fields import ConfigFields
    from edgespec.models.formats.tensors import TensorSource

UNIFIED = "gemma4_unified"
"""The name of the whole model."""

_WINDOW, _LAYER_EPS = 1024, 1e-5
_EMBEDDER, _DENSE = "model.vision_embedder", ".patch_dense.weight"
# Default values of transformers.
_SIZES: Mapping[str, object] = {
    "patch_size": 16, "pooling_kernel_size": 3, "mm_embed_dim": 3840, "mm_posemb_size": 1120,
    "rms_norm_eps": 1e-6,
}  # fmt: skip


@dataclass(frozen=True)
class PatchEmbedder(InProportion, Compound):
    """What makes a row of each patch, which is a row's square, and its place.

    `projection(norm(places_norm(dense_norm(dense(pixels_norm(x))) + place)))`. Rows see each other
    in all layers, as transformers has it unless it compiles them.

    Attributes:
        pixels_norm: Of the patch's numbers.
        dense: [patch² * 3] to [width].
        dense_norm: Behind it.
        positions: Name of the [places, 2, width] tensor of what is added by place.
        by_axis: Whether that is [2, places, width], as in GGUF files.
        places: Number of places.
        places_norm: Behind that.
        norm: Behind that.
        projection: To the text part's [hidden].
    """

    pixels_norm: LayerNorm
    dense: Linear
    dense_norm: LayerNorm
    positions: str
    by_axis: bool
    places: int
    places_norm: LayerNorm
    norm: Norm
    projection: Linear

    def tensors(self) -> Shapes:
        """Names and shapes of its tensors."""
        sizes = (2, self.places) if self.by_axis else (self.places, 2)
        return {**super().tensors(), self.positions: (*sizes, self.dense.out_features)}


def read_patch_embedder(
    source: TensorSource, fields: ConfigFields, found: ConfigFields
) -> PatchEmbedder:
    """Reads what makes rows of pictures, and checks its tensors; see `read_patch_tower`."""
    own = fields.group("vision_config").with_defaults(_SIZES)
    shared = in_proportion(source, fields, found, own)
    text = fields.group("text_config").with_defaults({"use_bidirectional_attention": "vision"})
    together = text.get("use_bidirectional_attention") == "vision"
    if together and shared.rows > text.integer("sliding_window", _WINDOW):
        raise found.unsupported("max_soft_tokens", "use no more than the text part's window")
    places = own.integer("mm_posemb_size")
    if places < shared.rows:
        raise own.invalid("mm_posemb_size", f"must be {shared.rows} or more")
    name = next((n.removesuffix(_DENSE) for n in source.names if n.endswith(_DENSE)), _EMBEDDER)
    size = 3 * shared.pixels.size**2
    width = own.integer("mm_embed_dim")
    positions = f"{name}.pos_embedding"
    by_axis = positions in source.names and source.shape(positions)[:2] == (2, places)

    def norm(part: str, size: int) -> LayerNorm:
        return LayerNorm(f"{name}.{part}.weight", size, _LAYER_EPS, bias=f"{name}.{part}.bias")

    embedder = PatchEmbedder(
        **vars(replace(shared, patch=shared.pixels.size, together=together)),
        pixels_norm=norm("patch_ln1", size),
        dense=Linear(f"{name}{_DENSE}", size, width, f"{name}.patch_dense.bias"),
        dense_norm=norm("patch_ln2", width),
        positions=positions,
        by_axis=by_axis,
        places=places,
        places_norm=norm("pos_norm", width),
        norm=Norm("", width, own.number("rms_norm_eps")),
        projection=projection_of(source, text, width),
    )
    check_shapes(source, embedder.tensors())
    return embedder
