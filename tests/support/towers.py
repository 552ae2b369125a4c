"""Small random checkpoints that read pictures, as transformers saves them, and their pictures."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch
from checkpoints import randomize, write_tokenizer
from PIL import Image
from small_configs import ODD_SHAPES, SPECIAL
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    InternVLConfig,
    InternVLForConditionalGeneration,
    Lfm2VlConfig,
    Lfm2VlForConditionalGeneration,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

# Tokens of what prompts have for pictures, in the order of their ids.
MARKS = (
    "<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>",
    "<start_of_image>", "<end_of_image>",
)  # fmt: skip
IMAGE = 331
AROUND = IMAGE + 5, IMAGE + 6
SIZE = 32  # pixels of a side of a piece
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image>{% else %} {{ p['text'] }}{% endif %}{% endfor %}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
_COLOURS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.25, 0.2]}


@dataclass(frozen=True)
class Pictured:
    """What a model that reads pictures is made of.

    Attributes:
        config: transformers' class of its config.
        model: transformers' class of it.
        text: fields of the text part's config.
        vision: fields of the tower's.
        own: fields of the whole model's.
        pixels: fields of the preprocessor's file.
        shown: what the chat template writes for a picture.
    """

    config: type
    model: type
    text: dict
    vision: dict
    own: dict
    pixels: dict
    shown: str = "<image>"


# 2 pixels of a side are in no patch, and 3 patches of a side are a row; heads of 12.
VISION = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": SIZE, "patch_size": 5,
}  # fmt: skip


def _splitting(config, model):
    pixels = {
        "do_image_splitting": True,
        "size": {"longest_edge": 2 * SIZE},
        "max_image_size": {"longest_edge": SIZE},
        "resample": 1,
        **_COLOURS,
    }
    own = {"image_token_id": IMAGE, "scale_factor": 3}
    return Pictured(config, model, {}, VISION, own, pixels)


# The windows are longer than a picture of 9 rows, and shorter than what is before it.
_GEMMA3 = Pictured(
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    {
        "model_type": "gemma3_text",
        "sliding_window": 12,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    VISION,
    {
        "image_token_index": IMAGE,
        "boi_token_index": AROUND[0],
        "eoi_token_index": AROUND[1],
        "mm_tokens_per_image": 9,
    },
    {"size": {"height": SIZE, "width": SIZE}, "resample": 2, **_COLOURS},
    "<start_of_image>",
)
# A picture of up to 70 rows of 3 patches by 3, which is more than a window.
GEMMA4_PIXELS = {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70}


def _gemma4(causal):
    text = {
        "model_type": "gemma4_text",
        "sliding_window": 40,
        "global_head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"],
        "vocab_size_per_layer_input": IMAGE + len(MARKS),
        "pad_token_id": 5,
        "hidden_size_per_layer_input": 32 if causal else 0,
        "use_bidirectional_attention": None if causal else "vision",
    }
    vision = {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 20,
        "patch_size": 4,
        "position_embedding_size": 256,
        "use_clipped_linears": causal,
        "standardize": not causal,
    }
    own = {"image_token_id": IMAGE, "boi_token_id": AROUND[0], "eoi_token_id": AROUND[1]}
    pixels = {**GEMMA4_PIXELS, "do_normalize": False}
    return Pictured(Gemma4Config, Gemma4ForConditionalGeneration, text, vision, own, pixels)


def _gemma4_unified():
    own = _gemma4(False)  # but rows see each other wherever they are
    text = {**own.text, "model_type": "gemma4_unified_text", "sliding_window": 80}
    vision = {"patch_size": 4, "mm_embed_dim": 48, "mm_posemb_size": 90, "output_proj_dims": 48}
    model = Gemma4UnifiedForConditionalGeneration
    return Pictured(Gemma4UnifiedConfig, model, text, vision, own.own, own.pixels)


# Rows are of 10 pixels a side, and both layers of the text part read further ones.
_GRID_VISION = {
    "hidden_size": 48, "intermediate_size": 80, "depth": 3, "num_heads": 4, "patch_size": 5,
    "num_position_embeddings": 16, "out_hidden_size": ODD_SHAPES["hidden_size"],
    "deepstack_visual_indexes": [0, 2],
}  # fmt: skip
# Windows of two rows by two, of which the second layer sees beyond.
_WINDOWED_VISION = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "depth": 3,
    "num_heads": 4,
    "patch_size": 5,
    "out_hidden_size": ODD_SHAPES["hidden_size"],
    "window_size": 20,
    "fullatt_block_indexes": [1],
}
GRID_PIXELS = {
    "size": {"shortest_edge": 400, "longest_edge": 3000}, "patch_size": 5, "merge_size": 2,
    "temporal_patch_size": 2, "resample": 3,
}  # fmt: skip
GRID_SHOWN = "<start_of_image><image><end_of_image>"


def _grid(kind, config, model, vision=_GRID_VISION):
    text = {**SPECIAL[f"{kind}_text"], "model_type": f"{kind}_text"}
    own = {"image_token_id": IMAGE, "vision_start_token_id": AROUND[0]}
    return Pictured(config, model, text, vision, own, {**GRID_PIXELS, **_COLOURS}, GRID_SHOWN)


# Pieces of 4 patches by 4, of which 2 by 2 are a row; up to 4 pieces and the whole picture.
_INTERNVL = Pictured(
    InternVLConfig,
    InternVLForConditionalGeneration,
    {"model_type": "qwen2"},
    {
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": [20, 20],
        "patch_size": [5, 5],
        "attention_bias": True,
    },
    {"image_token_id": IMAGE, "image_seq_length": 4},
    {
        "size": {"height": 20, "width": 20},
        "min_patches": 1,
        "max_patches": 4,
        "resample": 3,
        **_COLOURS,
    },
)

LFM2_PIXELS = {
    "min_tiles": 2,
    "max_tiles": 4,
    "min_image_tokens": 4,
    "max_image_tokens": 12,
    "encoder_patch_size": 5,
    "tile_size": 20,
}
_LFM2 = Pictured(
    Lfm2VlConfig,
    Lfm2VlForConditionalGeneration,
    {**SPECIAL["lfm2"], "model_type": "lfm2"},
    {
        "model_type": "siglip2_vision_model",
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "patch_size": 5,
        "num_patches": 16,
    },
    {"image_token_id": IMAGE, "projector_hidden_size": 96},
    {**LFM2_PIXELS, "resample": 2, **_COLOURS},
)

MODELS = {
    "gemma3": _GEMMA3,
    "gemma4": _gemma4(causal=False),
    "gemma4-causal": _gemma4(causal=True),
    "gemma4_unified": _gemma4_unified(),
    "idefics3": _splitting(Idefics3Config, Idefics3ForConditionalGeneration),
    "internvl": _INTERNVL,
    "lfm2_vl": _LFM2,
    "qwen2_5_vl": _grid(
        "qwen2_5_vl", Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, _WINDOWED_VISION
    ),
    "qwen3_5": _grid("qwen3_5", Qwen3_5Config, Qwen3_5ForConditionalGeneration),
    "qwen3_vl": _grid("qwen3_vl", Qwen3VLConfig, Qwen3VLForConditionalGeneration),
    "smolvlm": _splitting(SmolVLMConfig, SmolVLMForConditionalGeneration),
}
EXPERTS = {
    "qwen3_5_moe": _grid("qwen3_5_moe", Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration),
    "qwen3_vl_moe": _grid("qwen3_vl_moe", Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration),
}


def save_pictured(folder, model_type="smolvlm", *, sharp=1.0, text=(), vision=(), **pixels):
    """Saves a checkpoint with all that reads pictures; returns transformers' model of it."""
    made = {**MODELS, **EXPERTS}[model_type]
    usual = {"vocab_size": IMAGE + len(MARKS), "model_type": "llama", "eos_token_id": None}
    config = made.config(
        text_config={**ODD_SHAPES, **usual, "pad_token_id": 0, **made.text, **dict(text)},
        vision_config={**made.vision, **dict(vision)},
        tie_word_embeddings=False,
        eos_token_id=None,
        **made.own,
    )
    model = made.model(config)
    randomize(model)
    with torch.no_grad():
        model.lm_head.weight.mul_(sharp)
    model.save_pretrained(folder)
    settings = {"rescale_factor": 1 / 255, **made.pixels, **pixels}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    tokenizer = write_tokenizer(folder, IMAGE)
    tokenizer.add_special_tokens(list(MARKS))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE.replace("<image>", made.shown))
    return model.eval()


def picture(width, height, seed=0):
    """Returns a picture of random colours."""
    colours = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(colours)


def asked(*pictures, text="what is in the picture?", before=()):
    """Returns messages with pictures and a question."""
    parts = [{"type": "image", "image": each} for each in pictures]
    return [*before, {"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
