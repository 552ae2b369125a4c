"""The file in which llama.cpp has what reads pictures for a model, `mmproj-*.gguf` beside it.

Names are those of llama.cpp's converter and of `tools/mtmd/clip.cpp`
(https://github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from edgespec.bundle.pictures import Pixels
from edgespec.errors import UnsupportedModelError
from edgespec.models.fields import ConfigFields
from edgespec.models.formats.gguf.header import read_header
from edgespec.models.formats.gguf.mmproj_gemma4 import (
    GEMMA4UV,
    GEMMA4V,
    read_gemma4,
    read_gemma4_unified,
)
from edgespec.models.formats.gguf.mmproj_grid import GRIDS, IMAGE, WINDOWED, read_grid
from edgespec.models.formats.gguf.mmproj_internvl import CONTEXT, read_internvl
from edgespec.models.formats.gguf.mmproj_lfm2 import LFM2, read_lfm2
from edgespec.models.formats.gguf.names import Naming
from edgespec.models.formats.gguf.tensors import GgufTensors
from edgespec.models.named import tower_beside
from edgespec.models.vision.internvl import INTERNVL
from edgespec.models.vision.tower import MOST_PIXELS, tower_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from edgespec.models.formats.gguf.header import Header
    from edgespec.models.formats.gguf.vocabulary import GGUFVocabulary
    from edgespec.models.vision.grid import GridTower
    from edgespec.models.vision.reading import AnyTower

TOWER_KIND = "clip"
"""The architecture of such files."""

_log = logging.getLogger(__name__)

_WHOLE, _SPLITTING = "gemma3", "idefics3"  # types of projections, and of models in transformers
_GRID_READERS: Mapping[str, Callable[[ConfigFields, Header, ConfigFields, int], GridTower]] = {
    **{kind: partial(read_grid, windowed=kind == WINDOWED) for kind in GRIDS},
    INTERNVL: read_internvl,
    LFM2: read_lfm2,
}
_GEMMA4_READERS: Mapping[str, Callable[..., AnyTower]] = {
    GEMMA4V: read_gemma4,
    GEMMA4UV: read_gemma4_unified,
}
_TYPES = (_WHOLE, _SPLITTING, *_GEMMA4_READERS, *_GRID_READERS)
_TYPE_PLACES = ("clip.projector_type", "clip.vision.projector_type")  # with sound, the second
_VISION = "clip.vision"
# of Gemma 3, where it is not told
_FACTOR = f"{_VISION}.projector.scale_factor"
_USUAL_FACTOR = 4
_COLOURS = 3
_FILTERS = {_WHOLE: 2, _SPLITTING: 1}  # of Pillow, as their published checkpoints have it
_SIZES = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "image_size": "image_size",
    "patch_size": "patch_size",
}
# Tokens of pictures by their fields in transformers. Files of Gemma 3 may lack the first, which is
# behind the vocabulary of its tokenizer; then an unused one stands for a row.
_TOKENS: Mapping[str, Mapping[str, str]] = {
    _WHOLE: {
        "image_token_index": "<image_soft_token>",
        "boi_token_index": "<start_of_image>",
        "eoi_token_index": "<end_of_image>",
    },
    _SPLITTING: {"image_token_id": "<image>"},
    **{
        kind: {
            "image_token_id": "<|image|>",
            "boi_token_id": "<|image>",
            "eoi_token_id": "<image|>",
        }
        for kind in _GEMMA4_READERS
    },
    INTERNVL: {"image_token_id": CONTEXT},
    LFM2: {"image_token_id": "<image>"},
    **{kind: {"image_token_id": IMAGE} for kind in GRIDS},
}
_UNUSED = re.compile(r"<unused\d+>")

_VIT = "model.vision_model"
_UP, _DOWN = "mlp.fc1", "mlp.fc2"
_LAYER = {
    "ln1": "layer_norm1",
    "attn_out": "self_attn.out_proj",
    "ln2": "layer_norm2",
    "ffn_up": _UP,
    "ffn_down": _DOWN,
}
_MODEL = {
    "patch_embd": f"{_VIT}.embeddings.patch_embedding",
    "position_embd": f"{_VIT}.embeddings.position_embedding",
    "post_ln": f"{_VIT}.post_layernorm",
    "mm.model.fc": "model.connector.modality_projection.proj",
    "mm.input_projection.weight": "multi_modal_projector.mm_input_projection_weight",
    "mm.soft_emb_norm": "multi_modal_projector.mm_soft_emb_norm",
}


def read_mmproj(model: Path, config: ConfigFields, vocabulary: GGUFVocabulary) -> AnyTower | None:
    """Reads what makes rows of pictures from the file beside a model's, and checks its tensors.

    Args:
        model: The model's file.
        config: Its config, as transformers has it.
        vocabulary: Its vocabulary.

    Returns:
        None if there is no such file, or it is of another model or of a type that is not known
        here, of which a log tells.

    Raises:
        CheckpointError: The file is damaged or inconsistent.
    """
    file = tower_beside(model)
    if file is None:
        return None
    try:
        return _tower(file, read_header(file), config, vocabulary)
    except UnsupportedModelError as error:
        _tell(f"{model.name} reads texts alone: {error}")
        return None


@cache
def _tell(line: str) -> None:
    """Logs a line once: a model is opened several times while a bundle is made of it."""
    _log.warning("%s", line)


def _tower(
    file: Path, header: Header, config: ConfigFields, vocabulary: GGUFVocabulary
) -> AnyTower:
    """Describes a tower.

    Raises:
        UnsupportedModelError: The file is of another model, or of a type that is not known here.
        CheckpointError: It is damaged or inconsistent.
    """
    metadata = ConfigFields(header.metadata, str(file))
    place = next((each for each in _TYPE_PLACES if metadata.get(each)), _TYPE_PLACES[0])
    kind = metadata.get(place)
    if metadata.get("general.architecture") != TOWER_KIND:
        raise metadata.unsupported("general.architecture", f"{TOWER_KIND} reads pictures")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise metadata.unsupported(place, f"pictures are read with {', '.join(_TYPES)}")
    activation = "silu" if kind == WINDOWED else "gelu"
    told = kind in _GEMMA4_READERS or metadata.get(f"clip.use_{activation}") is True
    if not told:
        raise metadata.unsupported(f"clip.use_{activation}", f"pictures are read with {activation}")
    width = config.integer("hidden_size")
    if metadata.integer(f"{_VISION}.projection_dim") != width:
        raise metadata.unsupported(
            f"{_VISION}.projection_dim", f"the model reads rows of {width}, so this is of another"
        )
    tokens = _tokens(kind, metadata, vocabulary)
    if kind in _GEMMA4_READERS:
        return _GEMMA4_READERS[kind](metadata, header, config, tokens)
    if kind in _GRID_READERS:
        return _GRID_READERS[kind](metadata, header, config, tokens["image_token_id"])
    vision = {own: metadata.integer(f"{_VISION}.{name}") for own, name in _SIZES.items()}
    vision["num_hidden_layers"] = metadata.integer(
        f"{_VISION}.block_count", most=len(header.entries)
    )
    size = metadata.integer(f"{_VISION}.image_size", most=MOST_PIXELS)
    side = size // vision["patch_size"]
    factor = metadata.integer(_FACTOR, _USUAL_FACTOR if kind == _WHOLE else None)
    if side % factor:
        raise metadata.invalid(_FACTOR, f"must divide the {side} patches of a side")
    tensors = _source(file, header, vision["hidden_size"], vision["intermediate_size"])
    values = {
        **tokens,
        "model_type": kind,
        "scale_factor": factor,
        "mm_tokens_per_image": (side // factor) ** 2,
        "vision_config": {
            **vision,
            "layer_norm_eps": metadata.number(f"{_VISION}.attention.layer_norm_epsilon"),
        },
        "text_config": config.values,
    }
    tower = tower_of(ConfigFields(values, str(file)), _pixels(kind, size, metadata), tensors)
    if tower.mean_norm is None:
        return tower
    return replace(tower, mean_norm=replace(tower.mean_norm, offset=0.0))  # added by the converter


def _tokens(kind: str, metadata: ConfigFields, vocabulary: GGUFVocabulary) -> Mapping[str, int]:
    """Returns the ids of tokens of pictures, by their fields in transformers."""
    ids = {token: id_ for id_, token, _ in vocabulary.added()}
    unused = max(filter(_UNUSED.fullmatch, ids), key=ids.__getitem__, default="")
    found = dict[str, int]()
    for field, token in _TOKENS[kind].items():
        own = unused if token not in ids and field == "image_token_index" else token
        if own not in ids:
            raise metadata.unsupported(
                "clip.projector_type", f"the model has no token {token}, so this is of another"
            )
        found[field] = ids[own]
    return found


def _pixels(kind: str, size: int, metadata: ConfigFields) -> Pixels:
    """Returns what becomes of pictures before."""
    longest = 0
    if kind == _SPLITTING:
        longest = metadata.integer(f"{_VISION}.preproc_image_size", size, MOST_PIXELS)
    mean, std = (
        metadata.numbers(f"{_VISION}.{name}", _COLOURS) for name in ("image_mean", "image_std")
    )
    return Pixels(size, longest, kind == _SPLITTING, mean, std, _FILTERS[kind])


def _source(file: Path, header: Header, width: int, inner: int) -> GgufTensors:
    """Returns the tensors by their names in transformers.

    Older files have the two matrices of an MLP under each other's names, which their shapes tell.
    """
    entries = {name.removeprefix("v."): entry for name, entry in header.entries.items()}
    down = entries.get("blk.0.ffn_down.weight")
    layer = _LAYER
    if down is not None and down.shape == (inner, width) != (width, inner):
        layer = {**_LAYER, "ffn_up": _DOWN, "ffn_down": _UP}
    naming = Naming(TOWER_KIND, layer=layer, layers=f"{_VIT}.encoder.layers", model=_MODEL)
    return GgufTensors(str(file), entries, naming, len(entries), {})
