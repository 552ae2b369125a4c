"""Small random checkpoints that read pictures, as transformers saves them, and their pictures."""

from __future__ import annotations

import json

import numpy as np
import torch
from checkpoints import ODD_SHAPES, SPECIAL, randomize, write_tokenizer
from PIL import Image
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma4Config,
    Gemma4ForConditionalGeneration,
    Gemma4UnifiedConfig,
    Gemma4UnifiedForConditionalGeneration,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
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

MODELS = {
    "gemma3": (Gemma3Config, Gemma3ForConditionalGeneration),
    "gemma4": (Gemma4Config, Gemma4ForConditionalGeneration),
    "gemma4-causal": (Gemma4Config, Gemma4ForConditionalGeneration),
    "gemma4_unified": (Gemma4UnifiedConfig, Gemma4UnifiedForConditionalGeneration),
    "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration),
    "qwen3_5": (Qwen3_5Config, Qwen3_5ForConditionalGeneration),
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration),
    "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
}
EXPERTS = {
    "qwen3_5_moe": (Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration),
    "qwen3_vl_moe": (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration),
}
# Tokens of what prompts have for pictures, in the order of their ids.
MARKS = (
    "<image>", "<fake_token_around_image>", "<global-img>", "<row_1_col_1>", "<row_1_col_2>",
    "<start_of_image>", "<end_of_image>",
)  # fmt: skip
IMAGE = 331
SIZE = 32  # pixels of a side of a piece
# 2 pixels of a side are in no patch, and 3 patches of a side are a row; heads of 12.
VISION = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": SIZE, "patch_size": 5,
}  # fmt: skip
# The windows are longer than a picture of 9 rows, and shorter than what is before it.
_GEMMA = {
    "model_type": "gemma3_text", "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
# A picture of up to 70 rows of 3 patches by 3, which is more than a window.
GEMMA4_PIXELS = {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70}
_GEMMA4_VISION = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 3,
    "num_key_value_heads": 3, "head_dim": 20, "patch_size": 4, "position_embedding_size": 256,
}  # fmt: skip
_GEMMA4 = {
    "model_type": "gemma4_text", "sliding_window": 40, "global_head_dim": 32,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
# Rows are of 10 pixels a side, and both layers of the text part read further ones.
_GRID_VISION = {
    "hidden_size": 48, "intermediate_size": 80, "depth": 3, "num_heads": 4, "patch_size": 5,
    "num_position_embeddings": 16, "out_hidden_size": ODD_SHAPES["hidden_size"],
    "deepstack_visual_indexes": [0, 2],
}  # fmt: skip
GRID_PIXELS = {
    "size": {"shortest_edge": 400, "longest_edge": 3000}, "patch_size": 5, "merge_size": 2,
    "temporal_patch_size": 2, "resample": 3,
}  # fmt: skip
_PIXELS = {
    "do_image_splitting": True, "size": {"longest_edge": 2 * SIZE},
    "max_image_size": {"longest_edge": SIZE}, "resample": 1,
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}:{% for p in m['content'] %}"
    "{% if p['type'] == 'image' %}<image>{% else %} {{ p['text'] }}{% endif %}{% endfor %}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def save_pictured(folder, model_type="smolvlm", *, sharp=1.0, text=(), vision=(), **pixels):
    """Saves a checkpoint with all that reads pictures; returns transformers' model of it."""
    config_class, model_class = {**MODELS, **EXPERTS}[model_type]
    whole = model_type == "gemma3"
    own_text = text
    text = {**ODD_SHAPES, "vocab_size": IMAGE + len(MARKS), "model_type": "llama"}
    text |= {**(_GEMMA if whole else {}), "pad_token_id": 0, "eos_token_id": None}
    text |= dict(own_text)
    own = {"image_token_id": IMAGE, "scale_factor": 3}
    seen = VISION
    if gemma4 := model_type.startswith("gemma4"):
        text |= {**_GEMMA4, "vocab_size_per_layer_input": text["vocab_size"], "pad_token_id": 5}
        causal = model_type == "gemma4-causal"
        text["hidden_size_per_layer_input"] = 32 if causal else 0
        text["use_bidirectional_attention"] = None if causal else "vision"
        seen = {**_GEMMA4_VISION, "use_clipped_linears": causal, "standardize": not causal}
        if model_type == "gemma4_unified":  # whose rows see each other wherever they are
            text |= {"model_type": "gemma4_unified_text", "sliding_window": 80}
            seen = {
                "patch_size": 4,
                "mm_embed_dim": 48,
                "mm_posemb_size": 90,
                "output_proj_dims": 48,
            }
        own = {"image_token_id": IMAGE, "boi_token_id": IMAGE + 5, "eoi_token_id": IMAGE + 6}
    if whole:
        own = {"image_token_index": IMAGE, "boi_token_index": IMAGE + 5, "mm_tokens_per_image": 9}
        own["eoi_token_index"] = IMAGE + 6
    if grid := model_type.startswith("qwen"):
        text |= {**SPECIAL[f"{model_type}_text"], "model_type": f"{model_type}_text"}
        own = {"image_token_id": IMAGE, "vision_start_token_id": IMAGE + 5}
        seen = _GRID_VISION
    config = config_class(
        text_config=text,
        vision_config={**seen, **dict(vision)},
        tie_word_embeddings=False,
        eos_token_id=None,
        **own,
    )
    model = model_class(config)
    randomize(model)
    with torch.no_grad():
        model.lm_head.weight.mul_(sharp)
    model.save_pretrained(folder)
    settings = GEMMA4_PIXELS | {"do_normalize": False} if gemma4 else _pixels(whole, grid)
    settings = {**settings, **pixels}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    tokenizer = write_tokenizer(folder, 331)
    tokenizer.add_special_tokens(list(MARKS))
    tokenizer.save(str(folder / "tokenizer.json"))
    template = TEMPLATE.replace("<image>", "<start_of_image>") if whole else TEMPLATE
    if grid:
        template = TEMPLATE.replace("<image>", "<start_of_image><image><end_of_image>")
    (folder / "chat_template.jinja").write_text(template)
    return model.eval()


def _pixels(whole, grid):
    """What a preprocessor's file says of pixels, of models with one size of pictures or grids."""
    sizes = {"size": {"height": SIZE, "width": SIZE}, "resample": 2} if whole else _PIXELS
    return {
        **(GRID_PIXELS if grid else sizes),
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.5, 0.25, 0.2],
        "rescale_factor": 1 / 255,
    }


def picture(width, height, seed=0):
    """Returns a picture of random colours."""
    colours = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(colours)
