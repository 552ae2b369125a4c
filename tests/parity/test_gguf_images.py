"""GGUF files that read pictures: what their folders and transformers compute, found by content."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
import torch
from damage import damaged_gguf
from mmprojs import write_mmproj, write_pair
from nodes import MISSING
from parity import Text, distance, load
from towers import IMAGE, SIZE, picture, save_pictured

from edgespec import LLM, bundle, export
from edgespec.errors import CheckpointError, InputError
from edgespec.export import ExportOptions
from edgespec.llm.images import Viewer
from edgespec.models import load_checkpoint
from edgespec.models.formats.gguf.header import read_header
from edgespec.models.named import tower_name
from edgespec.models.vision.lfm2_vl import LFM2_PIXELS
from edgespec.runtime.vision import normalized
from edgespec.store.making import bundle_of

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

FAST = {"threads": 1, "context": 512}
KINDS = ("gemma3", "smolvlm")
# What GGUF files of Gemma 3 with two layers mean; published ones have heads of 256.
GEMMA = {"layer_types": ["sliding_attention"] * 2, "query_pre_attn_scalar": 24}
WHOLE_BLOCKS = {"hidden_size": 64, "intermediate_size": 96}
ASKED = [
    {
        "role": "user",
        "content": [
            {"type": "image", "image": picture(60, 20)},
            {"type": "text", "text": "what is it?"},
        ],
    }
]


def saved(folder, kind, **options):
    text = GEMMA if kind == "gemma3" else {}
    return save_pictured(folder, kind, text=text, sharp=12.0, **options)


@pytest.fixture(scope="module", params=KINDS)
def made(tmp_path_factory, request):
    """transformers' model, its folder, and the file that was made of it."""
    folder = tmp_path_factory.mktemp(request.param)
    model = saved(folder / "checkpoint", request.param)
    return model, folder / "checkpoint", write_pair(folder / "checkpoint", folder / "files")


def read_alike(folder, file, place):
    """Checks that a folder and a file give the same rows of a picture, and the same logits.

    Returns:
        The tokens, the picture, what is said of it, and the rows and logits of the file.
    """
    found = []
    for source, name in ((folder, "a"), (file, "b")):
        export.make(source, place / name, options=ExportOptions("fp32"))
        with LLM(place / name, **FAST) as llm:
            tokens = llm.chat_tokens(ASKED)
            viewer = Viewer(llm.bundle, llm.tokenizer, 1)
            opened = viewer.open([ASKED[0]["content"][0]["image"]], 512)
            seen = viewer.look(tokens, opened)()
            vision = llm.bundle.target.vision
        text = Text(load(place / name))
        text.sequence.pictures = seen
        found.append((tokens, seen.rows, text.read(tokens, len(tokens)), vision))
    (tokens, rows, logits, vision), (others, own_rows, own_logits, own_vision) = found
    assert (others, own_vision) == (tokens, vision)
    np.testing.assert_array_equal(own_rows, rows)
    assert distance(own_logits, logits) < 1e-5
    return tokens, opened[0], vision, own_rows, own_logits


@torch.no_grad()
def test_rows_and_logits_are_those_of_transformers_and_the_folder(made, tmp_path):
    model, folder, file = made
    tokens, opened, vision, rows, logits = read_alike(folder, file, tmp_path)
    pixels = np.concatenate([normalized(each, vision) for each in opened.pieces])
    read = {"pixel_values": torch.tensor(pixels if vision.around else pixels[None])}
    ids = torch.tensor([tokens])
    shown = {"token_type_ids": (ids == IMAGE).int()} if vision.around else {}
    expected = np.concatenate(
        [each.numpy() for each in model.model.get_image_features(**read).pooler_output]
    )
    np.testing.assert_allclose(rows, expected, atol=1e-4)
    assert distance(logits, model(input_ids=ids, **read, **shown).logits[0].numpy()) < 1e-4


GRIDS = ("internvl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5")


@pytest.fixture(scope="module", params=GRIDS)
def grid(tmp_path_factory, request):
    """The folder of a model that reads pictures of any size, and the file made of it."""
    folder = tmp_path_factory.mktemp(request.param)
    save_pictured(folder / "checkpoint", request.param, sharp=12.0)
    return folder / "checkpoint", write_pair(folder / "checkpoint", folder / "files")


def test_rows_and_logits_of_pictures_on_grids_are_those_of_the_folder(grid, tmp_path):
    read_alike(*grid, tmp_path)


GEMMA4_VISION = {
    "gemma4": {"head_dim": 16, "position_embedding_size": 900},
    "gemma4-causal": {"head_dim": 16, "position_embedding_size": 900},
    "gemma4_unified": {"mm_posemb_size": 300},
}


@pytest.mark.parametrize("kind", GEMMA4_VISION)
def test_rows_and_logits_of_gemma_4_are_those_of_the_folder(tmp_path, kind):
    pixels = {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 280}
    vision = GEMMA4_VISION[kind]
    text = {"pad_token_id": 0}  # as published ones
    if kind == "gemma4_unified":
        text["sliding_window"] = 300  # of which no picture is longer
    save_pictured(tmp_path / "checkpoint", kind, sharp=12.0, text=text, vision=vision, **pixels)
    file = write_pair(tmp_path / "checkpoint", tmp_path / "files")
    read_alike(tmp_path / "checkpoint", file, tmp_path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vision__block_count": 3}, "has no tensor model.vision_tower.encoder.layers.2"),
        ({"vision__projector__scale_factor": 40}, "patch_size=4 times 40 must be 128 or less"),
        ({"vision__patch_size": 5}, "has shape"),
        ({"vision__attention__head_count": 5}, "has shape"),
    ],
    ids=str,
)
def test_what_contradicts_itself_of_gemma_4_is_named(tmp_path, fields, words):
    vision = {"head_dim": 16, "position_embedding_size": 900}
    save_pictured(tmp_path / "checkpoint", "gemma4", vision=vision)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(write_pair(tmp_path / "checkpoint", tmp_path / "files", **fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vision__patch_size": 5}, "patch_size=5 times projector.scale_factor=3 must be that of"),
        ({"vision__projector__scale_factor": 2}, "patch_size=4 times projector.scale_factor=2 mu"),
        ({"vision__attention__layer_norm_epsilon": 0.0}, "layer_norm_epsilon=0.0 must be a posi"),
    ],
    ids=str,
)
def test_what_contradicts_itself_of_gemma_4_without_a_vit_is_named(tmp_path, fields, words):
    pixels = {"max_soft_tokens": 280}
    text = {"sliding_window": 300}
    vision = GEMMA4_VISION["gemma4_unified"]
    save_pictured(tmp_path / "checkpoint", "gemma4_unified", text=text, vision=vision, **pixels)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(write_pair(tmp_path / "checkpoint", tmp_path / "files", **fields))


def test_tensors_of_gemma_4_without_a_vit_are_those_of_the_folder(tmp_path):
    """Whose files have one colour behind another, and places by axis."""
    vision = GEMMA4_VISION["gemma4_unified"]
    text = {"sliding_window": 300}
    save_pictured(tmp_path / "checkpoint", "gemma4_unified", text=text, vision=vision)
    file = write_pair(tmp_path / "checkpoint", tmp_path / "files")
    tower = load_checkpoint(file).tower
    told = load_checkpoint(tmp_path / "checkpoint").tower
    assert tower.tensors().keys() == told.tensors().keys()
    for name in tower.tensors():
        found = tower.source.read(name)
        if name == tower.positions:
            found = found.swapaxes(0, 1)
        np.testing.assert_array_equal(found, told.source.read(name))


def test_rows_and_logits_of_squares_of_lfm2_are_those_of_the_folder(tmp_path):
    """Files have their sizes in llama.cpp's code: a small picture has 64 rows or more."""
    usual = dict.fromkeys(("min_tiles", "max_tiles", "min_image_tokens", "max_image_tokens"))
    pixels = {name: LFM2_PIXELS[name] for name in (*usual, "encoder_patch_size", "tile_size")}
    vision = {"patch_size": 16}
    save_pictured(tmp_path / "checkpoint", "lfm2_vl", sharp=12.0, vision=vision, **pixels)
    file = write_pair(tmp_path / "checkpoint", tmp_path / "files")
    read_alike(tmp_path / "checkpoint", file, tmp_path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vision__block_count": 1 << 30}, "block_count=1073741824 must be"),
        ({"vision__block_count": 4}, r"has no tensor (model.visual.blocks|vision_tower.encoder)"),
        ({"vision__image_mean": [0.5]}, "image_mean"),
        ({"vision__attention__head_count": 5}, "heads=5 must divide"),
    ],
    ids=str,
)
def test_what_contradicts_itself_of_pictures_on_grids_is_named(grid, tmp_path, fields, words):
    with pytest.raises(CheckpointError, match=words) as error:
        load_checkpoint(write_pair(grid[0], tmp_path, **fields))
    assert "mmproj-model-f16.gguf" in str(error.value)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("qwen3_vl", {"vision__image_size": 1 << 20}, "num_position_embeddings"),
        ("qwen3_vl", {"vision__is_deepstack_layers": 3}, "is_deepstack_layers=3 must be a list"),
        ("qwen2_5_vl", {"vision__n_wa_pattern": None}, "n_wa_pattern=.absent. must be"),
        ("qwen2_5_vl", {"vision__window_size": 9}, "window_size=9 must be 10 or more"),
    ],
    ids=str,
)
def test_what_contradicts_itself_of_places_and_windows_is_named(tmp_path, kind, fields, words):
    save_pictured(tmp_path / "checkpoint", kind)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(write_pair(tmp_path / "checkpoint", tmp_path / "files", **fields))


def test_older_files_have_matrices_under_each_others_names(made, tmp_path):
    legacy = write_pair(made[1], tmp_path, legacy=True)
    towers = [load_checkpoint(each).tower for each in (made[2], legacy)]
    assert towers[0].tensors() == towers[1].tensors()
    for name in towers[0].tensors():
        np.testing.assert_array_equal(*(each.source.read(name) for each in towers))


def test_a_file_that_comes_beside_a_model_is_read_from_then_on(made, tmp_path, own_cache):
    file = write_pair(made[1], tmp_path / "files")
    tower = file.with_name("mmproj-model-f16.gguf")
    content = tower.read_bytes()
    tower.unlink()
    first = bundle_of(file)
    with LLM(file, **FAST) as llm, pytest.raises(InputError, match="of text alone"):
        llm.chat(ASKED)
    tower.write_bytes(content)
    with LLM(file, **FAST) as llm:
        assert llm.chat(ASKED, max_new_tokens=4).new_tokens
        assert bundle.load(bundle_of(file)).digest == llm.bundle.digest
    assert bundle.load(first).target.vision is not None  # in the place of the old one


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_keep_the_numbers_of_their_files(tmp_path, kind):
    saved(tmp_path / "checkpoint", kind, vision=WHOLE_BLOCKS)
    sizes = []
    for encoding in ("Q4_0", "Q8_0", "F16"):
        file = write_pair(tmp_path / "checkpoint", tmp_path / encoding, encoding)
        export.make(file, tmp_path / f"of-{encoding}")
        sizes.append((tmp_path / f"of-{encoding}" / "vision.tiles").stat().st_size)
    assert sizes[0] < 0.7 * sizes[1]
    assert sizes[1] == sizes[2]


def test_without_its_token_in_the_vocabulary_an_unused_one_stands_for_a_row(tmp_path):
    saved(tmp_path / "checkpoint", "gemma3")
    file = write_pair(tmp_path / "checkpoint", tmp_path / "files", soft="<unused99>")
    assert load_checkpoint(file).tower.token == IMAGE


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"projector_type": "pixtral"}, "projector_type='pixtral' is not"),
        ({"projector_type": None}, "projector_type=(absent) is not supported"),
        ({"use_gelu": None}, "use_gelu"),
        ({"vision__projection_dim": 128}, "the model reads rows of 64, so this is of another"),
    ],
    ids=str,
)
def test_files_of_other_models_are_named_and_texts_read(made, tmp_path, caplog, fields, words):
    file = write_pair(made[1], tmp_path, **fields)
    assert load_checkpoint(file).tower is None
    (message,) = (e.getMessage() for e in caplog.records if e.levelno >= logging.WARNING)
    assert message.startswith("model.gguf reads texts alone: ")
    assert words in message


def test_the_file_of_a_model_with_other_tokens_is_named(tmp_path, caplog):
    for kind in KINDS:
        saved(tmp_path / kind, kind)
    file = write_pair(tmp_path / "smolvlm", tmp_path / "files")
    write_mmproj(tmp_path / "gemma3", file.with_name("mmproj-model-f16.gguf"))
    assert load_checkpoint(file).tower is None
    assert "the model has no token <image_soft_token>, so this is of another" in caplog.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vision__image_size": 1 << 20}, "image_size=1048576 must be 4096 or less"),
        ({"vision__image_size": SIZE // 2}, "embeddings.position_embedding|scale_factor"),
        ({"vision__block_count": 1 << 30}, "block_count=1073741824 must be"),
        ({"vision__block_count": 3}, r"has no tensor model.vision_model.encoder.layers.2"),
        ({"vision__image_mean": [0.5]}, "image_mean"),
        ({"vision__projector__scale_factor": 4}, "scale_factor=4 must divide the 6 patches"),
        ({"vision__embedding_length": 96}, "config.json asks for"),
        ({"vision__attention__head_count": 5}, "num_attention_heads=5 must divide"),
    ],
    ids=str,
)
def test_what_contradicts_itself_is_named(made, tmp_path, fields, words):
    with pytest.raises(CheckpointError, match=words) as error:
        load_checkpoint(write_pair(made[1], tmp_path, **fields))
    assert "mmproj-model-f16.gguf" in str(error.value)
    assert "\n" not in str(error.value)


def test_damaged_files_are_one_clear_line(made, tmp_path):
    file = write_pair(made[1], tmp_path)
    tower = file.with_name("mmproj-model-f16.gguf")
    chance = random.Random(7)
    intact = tower.read_bytes()
    start = min(entry.start for entry in read_header(tower).entries.values())
    lines = []
    for _ in range(60):
        tower.write_bytes(damaged_gguf(intact, start, chance))
        try:
            load_checkpoint(file)
        except CheckpointError as error:
            lines.append(str(error))
    assert len(lines) > 20
    assert all(tower.name in line and "\n" not in line for line in lines)


def test_the_file_itself_is_no_model(made):
    with pytest.raises(CheckpointError, match="give the file of the model for which"):
        load_checkpoint(made[2].with_name("mmproj-model-f16.gguf"))
    with pytest.raises(CheckpointError, match=r"such as .*/model.gguf"):
        load_checkpoint(made[2].parent)


@pytest.mark.parametrize(
    ("model", "names", "found"),
    [
        ("a-Q4_K_M.gguf", ["a-Q4_K_M.gguf", "b.gguf", "mmproj.txt"], None),
        ("a-Q4_K_M.gguf", ["mmproj-model-f16.gguf"], "mmproj-model-f16.gguf"),
        ("a-4b-Q4_0.gguf", ["mmproj-a-12b.gguf", "mmproj-a-4b.gguf"], "mmproj-a-4b.gguf"),
        ("a-4b-Q4_0.gguf", ["a-4b.mmproj-f16.gguf", "mmproj-b.gguf"], "a-4b.mmproj-f16.gguf"),
        ("mmproj-a.gguf", ["mmproj-a.gguf"], None),
    ],
)
def test_of_several_files_the_one_whose_name_is_most_alike(model, names, found):
    assert tower_name(model, names) == found
