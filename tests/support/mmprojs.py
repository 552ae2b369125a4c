"""GGUF files of models that read pictures: the text part, and beside it what reads them."""

from __future__ import annotations

import json

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from ggufs import add_field, write_gguf
from safetensors.numpy import save_file

from edgespec.models import SafetensorsFolder
from edgespec.models.vision.text_part import text_name

_BLOCK = 32
PAD = "<|image_pad|>"
_MERGERS = {
    "visual.merger.norm": "v.post_ln",
    "visual.merger.linear_fc1": "mm.0",
    "visual.merger.linear_fc2": "mm.2",
    "visual.deepstack_merger_list": "deepstack",
}
_LEGACY = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}


def write_pair(folder, place, encoding="F32", soft="<image_soft_token>", **fields):
    """Writes both files of a checkpoint of `save_pictured`; returns the model's.

    Args:
        folder: the checkpoint.
        place: folder to write to.
        encoding: that of matrices of the tower.
        soft: the token that stands for a row of a picture, if it is Gemma 3.
        fields: see `write_mmproj`.
    """
    place.mkdir(exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    kind = config["model_type"]
    write = _WRITERS.get(kind, write_grid if kind.startswith("qwen") else write_mmproj)
    write(folder, place / "mmproj-model-f16.gguf", encoding, **fields)
    own = place / "text"
    source = SafetensorsFolder(folder, text_name)
    own.mkdir(exist_ok=True)
    text = {**config["text_config"], "tie_word_embeddings": False}
    text["use_bidirectional_attention"] = None  # of rows of pictures, of which no file tells
    (own / "config.json").write_text(json.dumps(text))
    save_file({each: source.read(each) for each in source.names}, own / "model.safetensors")
    tokenizer = (folder / "tokenizer.json").read_text()
    if config["model_type"] == "gemma3":
        tokenizer = tokenizer.replace('"<image>"', f'"{soft}"')
    template = (folder / "chat_template.jinja").read_text()
    if config["model_type"].startswith("qwen"):
        tokenizer, template = (each.replace("<image>", PAD) for each in (tokenizer, template))
    if config["model_type"] in _TOKENS:
        token = _TOKENS[config["model_type"]]
        tokenizer, template = (each.replace("<image>", token) for each in (tokenizer, template))
    if config["model_type"].startswith("gemma4"):
        template = template.replace("<image>", "<|image|>")
        for before, token in _GEMMA4_TOKENS.items():
            tokenizer = tokenizer.replace(f'"{before}"', f'"{token}"')
    (own / "tokenizer.json").write_text(tokenizer)
    chat = {"tokenizer.chat_template": template}
    write_gguf(own, place / "model.gguf", **chat)
    return place / "model.gguf"


def write_mmproj(folder, file, encoding="F32", *, legacy=False, **fields):
    """Writes what llama.cpp's converter makes of what reads pictures in a checkpoint.

    Args:
        folder: the checkpoint.
        file: the file.
        encoding: that of matrices whose rows have whole blocks.
        legacy: whether an MLP's matrices have each other's names.
        fields: fields behind `clip.`, of which dots are `__`, or None for one that is left out.
    """
    config = json.loads((folder / "config.json").read_text())
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    whole = config["model_type"] == "gemma3"
    vision = config["vision_config"]
    given = {
        **_usual(config, settings),
        "projector_type": "gemma3" if whole else "idefics3",
        "vision__image_size": vision["image_size"],
        "vision__projector__scale_factor": 2 if whole else config["scale_factor"],
        "vision__preproc_image_size": None if whole else settings["size"]["longest_edge"],
    }
    writer = _begin(file, {**given, **fields})
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    source = SafetensorsFolder(folder)
    for name in sorted(source.names):
        own = name.removeprefix("model.") if whole else name
        if "vision_model" not in own:  # as published
            own = own.replace("vision_tower.", "vision_tower.vision_model.")
        own = own.replace("mm_input_projection_weight", "mm_input_projection.weight")
        place = table.get_name(own, try_suffixes=(".weight", ".bias"))
        if place is None or not place.startswith(("v.", "mm.")):
            continue  # of the text part
        part = place.split(".")[-2]
        if legacy and part in _LEGACY:
            place = place.replace(part, _LEGACY[part])
        _add(writer, place, source.read(name) + ("soft_emb_norm" in name), encoding)
    _close(writer)


def write_grid(folder, file, encoding="F32", **fields):
    """Writes what the converter makes of what reads pictures of any size; see `write_mmproj`."""
    config = json.loads((folder / "config.json").read_text())
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    vision = config["vision_config"]
    windowed = config["model_type"] == "qwen2_5_vl"
    behind = vision.get("deepstack_visual_indexes") or []
    further = _windows if windowed else _places
    given = {
        "has_vision_encoder": True,
        "vision__patch_size": vision["patch_size"],
        "vision__embedding_length": vision["hidden_size"],
        "vision__feed_forward_length": vision["intermediate_size"],
        "vision__block_count": vision["depth"],
        "vision__attention__head_count": vision["num_heads"],
        "vision__attention__layer_norm_epsilon": 1e-6,
        "vision__projection_dim": config["text_config"]["hidden_size"],
        "vision__spatial_merge_size": vision["spatial_merge_size"],
        "vision__image_min_pixels": settings["size"]["shortest_edge"],
        "vision__image_max_pixels": settings["size"]["longest_edge"],
        "vision__image_mean": settings["image_mean"],
        "vision__image_std": settings["image_std"],
        **further(vision, behind),
    }
    writer = _begin(file, {**given, **fields})
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["depth"])
    source = SafetensorsFolder(folder)
    for name in sorted(each for each in source.names if "visual." in each):
        values = source.read(name)
        own = name.removeprefix("model.")
        if own == "visual.patch_embed.proj.weight":
            for frame, ending in enumerate(("weight", "weight.1")):
                _add(writer, f"v.patch_embd.{ending}", values[:, :, frame], "F32")
            continue
        if windowed and ".qkv." in own:
            for part, each in zip("qkv", np.split(values, 3), strict=True):
                place = table.get_name(own.replace("qkv", part), (".weight", ".bias"))
                _add(writer, place, each, encoding)
            continue
        for part, place in ({} if windowed else _MERGERS).items():
            own = own.replace(part, place)
        if own.startswith("deepstack."):
            _, number, rest = own.split(".", 2)
            own = f"v.deepstack.{behind[int(number)]}.{rest.replace('linear_', '')}"
        place = table.get_name(own, try_suffixes=(".weight", ".bias"))
        _add(writer, place or own, values, encoding)
    _close(writer)


def write_internvl(folder, file, encoding="F32", **fields):
    """Writes what the converter makes of what reads pictures in InternVL; see `write_mmproj`."""
    config = json.loads((folder / "config.json").read_text())
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    vision = config["vision_config"]
    given = {
        **_usual(config, settings),
        "projector_type": "internvl",
        "vision__image_size": vision["image_size"][0],
        "vision__patch_size": vision["patch_size"][0],
        "vision__projector__scale_factor": round(1 / config["downsample_ratio"]),
        "vision__preproc_max_tiles": settings["max_patches"],
    }
    writer = _begin(file, {**given, **fields})
    layers = max(vision["num_hidden_layers"], len(_PROJECTION) + 1)
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)
    source = SafetensorsFolder(folder)
    for name in sorted(source.names):
        own = name.removeprefix("model.")
        if own.startswith("multi_modal_projector."):
            for part, number in _PROJECTION.items():
                own = own.replace(f"multi_modal_projector.{part}", f"mlp1.{number}")
        elif own.startswith("vision_tower."):
            own = f"model.{own}"
            if "lambda_" in own or "position_embeddings" in own:
                own += ".weight"
        else:
            continue  # of the text part
        place = table.get_name(own, try_suffixes=(".weight", ".bias"))
        _add(writer, place, source.read(name), encoding)
    _close(writer)


def write_lfm2(folder, file, encoding="F32", **fields):
    """Writes what the converter makes of what reads pictures in LFM2-VL; see `write_mmproj`."""
    config = json.loads((folder / "config.json").read_text())
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    vision = config["vision_config"]
    given = {
        **_usual(config, settings),
        "projector_type": "lfm2",
        "vision__image_size": 256,
        "vision__projector__scale_factor": config["downsample_factor"],
    }
    writer = _begin(file, {**given, **fields})
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 4)
    source = SafetensorsFolder(folder)
    for name in sorted(source.names):
        own = name.removeprefix("model.").replace("vision_tower.", "vision_tower.vision_model.")
        own = own.replace("vision_model.vision_model.", "vision_model.")  # as published
        if not own.startswith(("multi_modal_projector.", "vision_tower.")):
            continue  # of the text part
        values = source.read(name)
        if own.endswith("patch_embedding.weight"):
            side = vision["patch_size"]
            values = values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
        place = table.get_name(own, try_suffixes=(".weight", ".bias"))
        if place is not None:  # it has nothing that pools patches
            _add(writer, place, values, encoding)
    _close(writer)


def write_gemma4(folder, file, encoding="F32", **fields):
    """Writes what the converter makes of what reads pictures in Gemma 4; see `write_mmproj`."""
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    given = {
        "vision__projector_type": "gemma4v",
        "has_vision_encoder": True,
        "vision__image_size": 224,
        "vision__patch_size": vision["patch_size"],
        "vision__embedding_length": vision["hidden_size"],
        "vision__feed_forward_length": vision["intermediate_size"],
        "vision__block_count": vision["num_hidden_layers"],
        "vision__attention__head_count": vision["num_attention_heads"],
        "vision__attention__layer_norm_epsilon": 1e-6,
        "vision__projection_dim": config["text_config"]["hidden_size"],
        "vision__image_mean": [0.0] * 3,
        "vision__image_std": [1.0] * 3,
    }
    writer = _begin(file, {**given, **fields})
    endings = ".weight", ".input_max", ".input_min", ".output_max", ".output_min"
    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, vision["num_hidden_layers"])
    source = SafetensorsFolder(folder)
    for name in sorted(source.names):
        if not name.startswith(("model.vision_tower.", "model.embed_vision.")):
            continue  # of the text part
        values = source.read(name)
        own = name.replace("model.vision_tower.encoder.", "vision_model.model.")
        own = own.replace(".linear.weight", ".weight")
        if own.endswith("input_proj.weight"):
            side = vision["patch_size"]
            values = values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)
        if own.endswith("position_embedding_table"):
            own += ".weight"
        _add(writer, table.get_name(own, endings), np.atleast_1d(values), encoding)
    _close(writer)


def write_gemma4_unified(folder, file, encoding="F32", **fields):
    """Writes what the converter makes of what Gemma 4 12B has for pictures; see `write_mmproj`."""
    config = json.loads((folder / "config.json").read_text())
    vision = config["vision_config"]
    given = {
        "vision__projector_type": "gemma4uv",
        "audio__projector_type": "gemma4ua",
        "has_vision_encoder": True,
        "vision__image_size": 224,
        "vision__patch_size": vision["patch_size"],
        "vision__embedding_length": vision["mm_embed_dim"],
        "vision__feed_forward_length": 0,
        "vision__block_count": 0,
        "vision__attention__head_count": 0,
        "vision__attention__layer_norm_epsilon": 1e-6,
        "vision__projection_dim": config["text_config"]["hidden_size"],
        "vision__image_mean": [0.0] * 3,
        "vision__image_std": [1.0] * 3,
    }
    writer = _begin(file, {**given, **fields})
    source = SafetensorsFolder(folder)
    for name in sorted(source.names):
        if not name.startswith(("model.vision_embedder.", "model.embed_vision.")):
            continue  # of the text part, or of sounds
        values = source.read(name)
        *_, part, kind = name.split(".")
        if kind == "pos_embedding":
            part, kind = kind, "weight"
            values = values.transpose(1, 0, 2)
        if part in ("patch_dense", "patch_ln1") and (part, kind) != ("patch_dense", "bias"):
            values = values[..., _by_colour(vision)]
        _add(writer, f"{_UNIFIED[part]}.{kind}", values, encoding)
    _close(writer)


def _by_colour(vision):
    """Returns the numbers of a square by their colour, then by line and column."""
    side = vision["patch_size"] * vision["pooling_kernel_size"]
    lines, columns, colours = np.indices((side, side, 3)).reshape(3, -1)
    return np.lexsort((columns, lines, colours))


_PROJECTION = {"layer_norm": 0, "linear_1": 1, "linear_2": 3}
_UNIFIED = {
    "patch_ln1": "v.patch_norm.1",
    "patch_dense": "v.patch_embd",
    "patch_ln2": "v.patch_norm.2",
    "pos_embedding": "v.position_embd",
    "pos_norm": "v.patch_norm.3",
    "embedding_projection": "mm.input_projection",
}
_WRITERS = {
    "internvl": write_internvl,
    "lfm2_vl": write_lfm2,
    "gemma4": write_gemma4,
    "gemma4_unified": write_gemma4_unified,
}
_GEMMA4_TOKENS = {
    "<image>": "<|image|>",
    "<start_of_image>": "<|image>",
    "<end_of_image>": "<image|>",
}
_TOKENS = {"internvl": "<IMG_CONTEXT>"}


def _places(vision, behind):
    """Returns fields of towers with learned places, of Qwen3-VL."""
    side = int(vision["num_position_embeddings"] ** 0.5)
    return {
        "projector_type": "qwen3vl_merger",
        "use_gelu": True,
        "vision__image_size": side * vision["patch_size"],
        "vision__is_deepstack_layers": [layer in behind for layer in range(vision["depth"])],
    }


def _windows(vision, _behind):
    """Returns fields of towers with windows, of Qwen2.5-VL."""
    return {
        "projector_type": "qwen2.5vl_merger",
        "use_silu": True,
        "vision__image_size": 560,
        "vision__n_wa_pattern": vision["fullatt_block_indexes"][0] + 1,
        "vision__window_size": vision["window_size"],  # where it is not 112
    }


def _usual(config, settings):
    """Returns fields that most files have."""
    vision = config["vision_config"]
    return {
        "has_vision_encoder": True,
        "use_gelu": True,
        "vision__patch_size": vision["patch_size"],
        "vision__embedding_length": vision["hidden_size"],
        "vision__feed_forward_length": vision["intermediate_size"],
        "vision__block_count": vision["num_hidden_layers"],
        "vision__attention__head_count": vision["num_attention_heads"],
        "vision__attention__layer_norm_epsilon": vision["layer_norm_eps"],
        "vision__projection_dim": config["text_config"]["hidden_size"],
        "vision__image_mean": settings["image_mean"],
        "vision__image_std": settings["image_std"],
    }


def _begin(file, fields):
    """Begins a file with fields behind `clip.`, see `write_mmproj`."""
    writer = GGUFWriter(str(file), "clip")
    for name, value in fields.items():
        add_field(writer, f"clip.{name.replace('__', '.')}", value)
    return writer


def _add(writer, place, values, encoding):
    whole = values.ndim == 2 and values.shape[1] % _BLOCK == 0 and "embd" not in place
    used = GGMLQuantizationType[encoding if whole else "F32"]
    writer.add_tensor(place, quants.quantize(values.astype(np.float32), used), raw_dtype=used)


def _close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
