"""Calibration at export: what it sees, which matrices get more bits, and what a user is told."""

from __future__ import annotations

import logging
from shutil import copytree

import numpy as np
import pytest
from exports import content
from nodes import MISSING
from safetensors.numpy import load_file, save_file

from edgespec import LLM, bundle, export
from edgespec.errors import CheckpointError, ExportError, InputError
from edgespec.export import CalibrationResult, ExportOptions, RoundedMatrices, Texts, calibrate
from edgespec.export.calibration.damage import to_widen
from edgespec.export.formats.tiles import tile_weights
from edgespec.measuring.perplexity import TokenizedText
from edgespec.models import load_checkpoint
from edgespec.tuning.calibrating import TextCalibration, opener
from edgespec.tuning.quality import HeldOutText, Quality
from edgespec.tuning.texts import PASSAGES

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

TEXTS = np.random.default_rng(1).integers(331, size=(4, 48)).tolist()


@pytest.fixture(scope="module")
def checkpoint(saved_checkpoint):
    return load_checkpoint(saved_checkpoint("llama"))


PARTS = Texts(fitted=TEXTS[:2], judged=TEXTS[2:3])


@pytest.fixture(scope="module")
def spool(tmp_path_factory, checkpoint):
    formats = dict.fromkeys(names(checkpoint), "q4_0")
    with RoundedMatrices(tmp_path_factory.mktemp("spool"), formats) as rounded:
        yield rounded


@pytest.fixture(scope="module")
def calibrated(checkpoint, spool):
    return calibrate(checkpoint, PARTS, spool, opener())


def names(checkpoint):
    return [
        layer.weight
        for a, m in checkpoint.decoder.layers
        for layer in (a.q, a.k, a.v, a.o, m.gate, m.up, m.down)
    ]


# What is seen


def test_every_matrix_of_the_layers_is_rounded_and_judged(checkpoint, calibrated, spool):
    assert list(calibrated.damage) == list(calibrated.sizes) == list(spool) == names(checkpoint)
    for name in names(checkpoint):
        rows, width = checkpoint.tensors.shape(name)
        original = checkpoint.tensors.read(name)
        found = spool[name]
        restored = tile_weights("q4_0", found.tiles, rows, width)
        error = np.square(restored - original).sum()
        assert 0 < error < 0.03 * np.square(original).sum()
        assert found.squared_error == pytest.approx(error, rel=1e-4)
        assert calibrated.sizes[name] == rows * width
        assert 0 < calibrated.damage[name] < 0.1


def test_fewer_bits_do_more_damage(saved_checkpoint, tmp_path):
    wide = load_checkpoint(saved_checkpoint("llama", hidden_size=128, intermediate_size=256))
    damage = {}
    for form in ("q4_0", "q5_0"):
        with RoundedMatrices(tmp_path, dict.fromkeys(names(wide), form)) as spool:
            damage[form] = sum(calibrate(wide, PARTS, spool, opener()).damage.values())
    assert damage["q4_0"] > 2 * damage["q5_0"]


# What follows


def seen(**tables):
    """A calibration of matrices by damage and size."""
    damage, sizes = ({name: each[i] for name, each in tables.items()} for i in (0, 1))
    return CalibrationResult(damage, sizes)


def test_most_damage_by_weight_is_widened_first():
    table = seen(small=(0.02, 10), large=(0.03, 60), harmless=(0.001, 30))
    assert to_widen(table, dict.fromkeys(table.sizes, 2), room=0.2) == {"small"}
    assert to_widen(table, dict.fromkeys(table.sizes, 2), room=1.4) == {"small", "large"}
    assert to_widen(table, dict.fromkeys(table.sizes, 2), room=2) == {"small", "large", "harmless"}
    dear = {"small": 50, "large": 2, "harmless": 2}
    assert to_widen(table, dear, room=1.2) == {"large"}


def test_no_more_is_widened_than_there_is_room_for():
    table = seen(small=(0.02, 10), large=(0.03, 60), harmless=(0.001, 30))
    assert to_widen(table, dict.fromkeys(table.sizes, 1), room=0.4) == {"small", "harmless"}
    assert to_widen(table, dict.fromkeys(table.sizes, 1), room=0) == set()


# Bundles


@pytest.fixture(scope="module")
def mixed(saved_checkpoint, tmp_path_factory):
    """Bundles by precision, all of one model, and their quality."""
    source = saved_checkpoint("llama")
    folder = tmp_path_factory.mktemp("mixed")
    qualities = {}
    for precision in ("int4", "int4-small", "int8"):
        path = folder / precision
        options = ExportOptions(precision)
        export.make(source, path, options=options, calibration=TextCalibration())
        qualities[precision] = HeldOutText(source).quality(path)
    return folder, qualities


def test_matrices_that_need_them_have_more_bits(mixed):
    folder, _ = mixed
    role = bundle.load(folder / "int4").target
    assert (role.precision.weights, role.precision.lm_head) == ("int4", "int6")
    wide = role.native.formats["q8_0"] - 331 * 64  # of the output projection
    assert 0 < wide < role.native.formats["q5_0"]
    small = bundle.load(folder / "int4-small").target
    assert (small.precision.weights, small.precision.lm_head) == ("int4", "int4")
    assert small.native.formats.keys() == {"q4_0"}


def test_the_more_bits_the_nearer_to_the_original(mixed):
    _, qualities = mixed
    assert qualities["int4"].kl < 0.8 * qualities["int4-small"].kl
    assert qualities["int8"].kl < 0.3 * qualities["int4"].kl


def test_products_in_several_formats_are_put_together_in_order(mixed):
    """Of queries in 4 bits, and keys and values in 8, in some layer or the other."""
    folder, qualities = mixed
    llm, reference = (LLM(folder / each, draft="none", context=256) for each in ("int4", "int8"))
    found = TokenizedText(llm, PASSAGES[0], reference=reference).evaluate().against
    assert found.kl.value < 3 * qualities["int4"].kl


def test_quality_is_what_transformers_and_the_bundle_predict(saved_checkpoint, tmp_path):
    source = saved_checkpoint("llama")
    export.make(source, tmp_path / "b", options=ExportOptions("int8"))
    found = HeldOutText(source).quality(tmp_path / "b")
    assert 0 < found.kl < 0.01
    assert found.agreement > 0.9
    assert found.perplexity == pytest.approx(found.original, rel=0.05)
    # Of every eight pieces of 128 tokens one is held out; the first 16 of a piece are not judged.
    assert found.tokens % (128 - 17) == 0
    assert found.tokens > 128


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_what_is_not_rounded_to_4_bits_is_not_calibrated(saved_checkpoint, tmp_path, precision):
    def calibration(*arguments):
        raise AssertionError(arguments)

    source = saved_checkpoint("llama")
    options = ExportOptions(precision)
    export.make(source, tmp_path / "b", options=options, calibration=calibration)
    assert 0 <= HeldOutText(source).quality(tmp_path / "b").kl < 0.01


@pytest.mark.parametrize(
    ("kl", "word"),
    [(0.003, "hard to tell"), (0.04, "close"), (0.1, "similar"), (0.5, "--precision")],
)
def test_quality_has_a_word(kl, word):
    found = {"kl": kl, "agreement": 0.9, "perplexity": 12.3, "original": 11.9}
    quality = Quality(tokens=222, device="cpu:native", **found)
    assert f"KL {kl:.3f} nats" in str(quality)
    assert word in str(quality)
    assert "222 tokens on cpu:native" in str(quality)


# Texts of users


def test_the_command_says_what_is_left_of_the_model_where_asked(saved_checkpoint, cli, tmp_path):
    source = saved_checkpoint("llama")
    assert "quality" not in cli("export", source, "-o", tmp_path / "b").out
    assert "quality: KL 0." in cli("export", source, "-o", tmp_path / "c", "--quality").out
    plain, asked = (content(tmp_path / each) for each in "bc")
    assert plain == asked


@pytest.mark.parametrize("own", [True, False])
def test_a_text_too_short_to_hold_some_of_it_out(saved_checkpoint, cli, tmp_path, monkeypatch, own):
    """A user's own text is refused; where ours does not suit, the bundle is made all the same."""
    text = tmp_path / "text.txt"
    text.write_text(PASSAGES[0][:400], encoding="utf-8")
    monkeypatch.setattr("edgespec.tuning.texts.PASSAGES", (PASSAGES[0][:400],))
    extra = ("--calibrate", text) if own else ()
    done = cli("export", saved_checkpoint("llama"), "-o", tmp_path / "b", "--quality", *extra)
    assert "too short to hold some of it out" in done.err
    assert (tmp_path / "b").exists() == (done.code == 0) == (not own)


def test_a_text_of_the_users_own(saved_checkpoint, cli, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(PASSAGES[::-1]), encoding="utf-8")
    source = str(saved_checkpoint("llama"))
    cli("export", source, "-o", str(tmp_path / "own"), "--calibrate", str(text))
    cli("export", source, "-o", str(tmp_path / "ours"), "--calibrate")
    cli("export", source, "-o", str(tmp_path / "none"))
    files = [(tmp_path / each / "target.tiles").read_bytes() for each in ("own", "ours", "none")]
    assert len(set(files)) == 3


@pytest.mark.parametrize(
    ("content_", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00\x01" * 99, "UTF-8"),
        (b"Too short.", "give at least"),
    ],
)
def test_texts_that_cannot_be_used(saved_checkpoint, cli, tmp_path, output, content_, message):
    text = tmp_path / "text.txt"
    text.write_bytes(content_)
    with pytest.raises(InputError, match=message):
        export.make(saved_checkpoint("llama"), output, calibration=TextCalibration(text))
    assert not content(output.parent)


def test_a_model_of_another_language_is_exported_all_the_same(
    saved_checkpoint, tmp_path, monkeypatch, caplog
):
    def unknown(*_):
        raise InputError("our passages: 80% of its tokens are unknown to the model")

    monkeypatch.setattr("edgespec.tuning.calibrating.pieces_of", unknown)
    with caplog.at_level(logging.WARNING):
        export.make(saved_checkpoint("llama"), tmp_path / "b", calibration=TextCalibration())
    assert "not calibrated: our passages" in caplog.text
    assert bundle.load(tmp_path / "b").target.native.formats.keys() == {"q5_0", "q8_0"}


def test_without_compiled_operators_there_is_no_calibration(
    saved_checkpoint, cli, tmp_path, monkeypatch
):
    source = saved_checkpoint("llama")
    cli("export", source, "-o", tmp_path / "plain")
    monkeypatch.setattr(
        "edgespec.runtime.kernels._NAMES", dict.fromkeys(("linux", "darwin", "win32"), "none")
    )
    done = cli("export", source, "-o", tmp_path / "b", "--calibrate", "--quality")
    assert done.code == 0
    assert content(tmp_path / "b") == content(tmp_path / "plain")
    for line in ("not calibrated: no compiled kernels", "quality not measured: no compiled"):
        assert done.err.count(line) == 1


# Checkpoints


def edited(source, folder, name, change):
    """A copy of a checkpoint in which one tensor has changed."""
    copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = change(tensors[name])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (CheckpointError, "model.layers.1.mlp.up_proj.weight", np.nan, "contains infinity or NaN"),
        (CheckpointError, "model.norm.weight", np.nan, "contains infinity or NaN"),
        (CheckpointError, "model.embed_tokens.weight", np.inf, "contains infinity or NaN"),
        (ExportError, "model.layers.1.mlp.up_proj.weight", 1e5, "of half precision is 65504"),
        (
            CheckpointError,
            "model.layers.0.input_layernorm.weight",
            1e38,
            "computes infinity or NaN",
        ),
    ],
)
def test_numbers_that_cannot_be(saved_checkpoint, tmp_path, output, kind, name, value, message):
    def change(tensor):
        return np.full_like(tensor, value)

    source = edited(saved_checkpoint("llama"), tmp_path / "edited", name, change)
    with np.errstate(all="ignore"), pytest.raises(kind, match=message):
        export.make(source, output, calibration=TextCalibration())
    assert not content(output.parent)


def test_a_context_shorter_than_our_text(saved_checkpoint, cli, tmp_path):
    source = saved_checkpoint("llama", max_position_embeddings=64)
    assert "quality: KL 0." in cli("export", source, "-o", tmp_path / "b", "--quality").out
