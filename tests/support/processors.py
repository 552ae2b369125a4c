"""What transformers' models read of pictures, by its own processors."""

from __future__ import annotations

import numpy as np
import torch
from towers import GEMMA4_PIXELS, GRID_PIXELS, IMAGE, SIZE
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from edgespec import bundle
from edgespec.runtime.vision import cut_picture, normalized

COLOURS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2]}


def inputs(model, tokens, *given):
    """Returns what transformers' model reads."""
    ids = torch.tensor([tokens])
    kind = model.config.model_type
    if kind.startswith("gemma4"):
        return {"input_ids": ids, **_in_proportion(kind, ids, given)}
    if kind.startswith("qwen"):
        found = in_grid([[each] for each in given])
        shown = {name: torch.tensor(np.array(each)) for name, each in found.items()}
        return {"input_ids": ids, "mm_token_type_ids": (ids == IMAGE).int(), **shown}
    if kind == "gemma3":
        shown = {"token_type_ids": (ids == IMAGE).int()}
        return {"input_ids": ids, "pixel_values": torch.tensor(whole(given)), **shown}
    if kind == "lfm2_vl":
        return {"input_ids": ids, **_of_patches(given)}
    if kind == "internvl":
        return {"input_ids": ids, "pixel_values": torch.tensor(tiles(given)[0])}
    pixels = torch.tensor(np.concatenate([pieces(each)[0] for each in given]))[None]
    return {"input_ids": ids, "pixel_values": pixels}


def _in_proportion(kind, ids, given):
    # Patches of the unified model are what others have three by three of.
    merged = {"patch_size": 12, "pooling_kernel_size": 1, "max_soft_tokens": 70}
    sizes = merged if kind == "gemma4_unified" else GEMMA4_PIXELS
    read = dict(Gemma4ImageProcessorPil(**sizes)([[each] for each in given]))
    del read["num_soft_tokens_per_image"]
    read = {name: torch.tensor(np.array(each)) for name, each in read.items()}
    return {"mm_token_type_ids": (ids == IMAGE).long(), **read}


def whole(given):
    """Returns Gemma 3's pictures."""
    processor = Gemma3ImageProcessorPil(size={"height": SIZE, "width": SIZE}, **COLOURS)
    return np.array(processor([[each] for each in given])["pixel_values"])


def in_grid(given):
    """Returns patches, and how many lines and columns of them pictures have."""
    return Qwen2VLImageProcessorPil(**GRID_PIXELS, **COLOURS)(given)


LFM2_TILES = bundle.PictureTiles(20, 2, 4, 2.0, "<|image_start|>", "<|image_end|>", "{row}", "w")
LFM2_VISION = bundle.Vision(
    10,
    0,
    False,
    tuple(COLOURS["image_mean"]),
    tuple(COLOURS["image_std"]),
    2,
    "graph",
    "data",
    IMAGE,
    4,
    grid=bundle.PixelGrid(400, 1200, None, 0),
    tiles=LFM2_TILES,
)


def _of_patches(given):
    """Returns LFM2-VL's patches; its own processor needs torchvision, so that pieces are ours."""
    seen = [cut_picture(each, LFM2_VISION) for each in given]
    pieces = [normalized(piece, LFM2_VISION)[0] for each in seen for piece in each.pieces]
    sizes = np.array([each.shape[1:] for each in pieces]) // 5
    patches = np.zeros((len(pieces), sizes.prod(1).max(), 75), np.float32)
    for row, (piece, (lines, columns)) in enumerate(zip(pieces, sizes, strict=True)):
        parts = piece.reshape(3, lines, 5, columns, 5).transpose(1, 3, 2, 4, 0)
        patches[row, : lines * columns] = parts.reshape(-1, 75)
    shown = np.arange(patches.shape[1]) < sizes.prod(1)[:, None]
    return {
        "pixel_values": torch.tensor(patches),
        "spatial_shapes": torch.tensor(sizes),
        "pixel_attention_mask": torch.tensor(shown.astype(np.int32)),
    }


def tiles(given):
    """Returns InternVL's pieces of pictures, and their numbers."""
    sizes = {"size": {"height": 20, "width": 20}, "max_patches": 4, "resample": 3}
    processor = GotOcr2ImageProcessorPil(**sizes, **COLOURS)
    found = processor([[each] for each in given], crop_to_patches=True, return_tensors="np")
    return found["pixel_values"], found["num_patches"].tolist()


def pieces(given, **options):
    """Returns SmolVLM's pieces of a picture, and its numbers of rows and columns."""
    own = {
        "size": {"longest_edge": 2 * SIZE},
        "max_image_size": {"longest_edge": SIZE},
        **COLOURS,
    }
    found = SmolVLMImageProcessorPil(**own, **options)(
        [[given]], return_tensors="np", return_row_col_info=True
    )
    return found["pixel_values"][0], found["rows"][0][0], found["cols"][0][0]
