"""The benchmark of real models, without one: what it says of texts, and files it reads."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from checkpoints import make_checkpoint, write_tokenizer

from edgespec.models import load_checkpoint

# Last: both folders have modules of the same name.
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

base, gguf_checkpoint, gguf_file, kinds, lines, llama_cpp, measure = map(
    importlib.import_module,
    (
        "peers.base", "gguf_checkpoint", "peers.gguf_file", "kinds", "peers.lines",
        "peers.llama_cpp", "peers.measure",
    ),
)  # fmt: skip

SPANS = {"code": range(1), "chat": range(1, 2)}


@pytest.fixture
def made():
    """Peer a decodes plainly and drafts, twice as fast; peer b drafts only."""

    def row(peer, setting, repeat, prompt, tokens):
        seconds = 1.0 if setting == "plain" else 0.5
        return lines.Row(peer, setting, 0.0, repeat, prompt, 4, tuple(tokens), 0.1, 0.1 + seconds)

    rows = []
    for repeat in (0, 1):
        for prompt in (0, 1):
            rows += [row("a", "plain", repeat, prompt, range(11)),
                     row("b", "draft", repeat, prompt, range(11))]  # fmt: skip
        rows.append(row("a", "draft", repeat, 0, range(11)))
        rows.append(row("a", "draft", repeat, 1, [0, 1, 2 + repeat, *range(3, 11)]))
    ways = [
        lines.Way("a", "plain", "int4", 2.0, 100.0, ()),
        lines.Way("a", "draft", "int4", 2.0, 100.0, ("yes", "no")),
        lines.Way("b", "draft", "int4", 2.0, 100.0, ()),
    ]
    return measure.Measured(ways, rows)


@pytest.mark.parametrize(
    ("expected", "found", "place"),
    [((1, 2, 3), [1, 2, 3], None), ((1, 2, 3), (1, 5, 3), 1), ((1, 2), (1, 2, 3), 2)],
)
def test_texts_differ_first_at_a_place(expected, found, place):
    assert kinds.difference(expected, found) == place


def test_texts_are_compared_with_plain_decoding_and_with_themselves_kind_by_kind(made):
    same = {(s.prompts, s.peer, s.setting): s for s in kinds.samenesses(SPANS, made)}
    code, chat = same["code", "a", "draft"], same["chat", "a", "draft"]
    assert (code.from_plain, code.from_itself, code.verdicts) == ((), (), "1 yes")
    assert (chat.from_plain, chat.from_itself, chat.verdicts) == ((), (2,), "1 no")
    assert same["code", "b", "draft"].from_plain is None


def test_speed_is_by_the_same_peers_plain_decoding(made):
    ratios = {(s.prompts, s.peer, s.setting): s.to_plain for s in kinds.speeds(SPANS, made)}
    assert ratios["code", "a", "draft"] == ratios["chat", "a", "draft"] == 2.0
    assert ratios["code", "b", "draft"] is None


def test_a_gguf_file_is_found_beside_its_checkpoint(tmp_path):
    pair, output = base.Checkpoints(tmp_path / "model-0.5b", None), tmp_path / "out"
    output.mkdir()
    with pytest.raises(base.PeerError, match=r"model-0\.5b\.gguf"):
        llama_cpp.PEER_GGUF.convert(pair, output)
    (tmp_path / "model-0.5b.gguf").write_text("weights")
    llama_cpp.PEER_GGUF.convert(pair, output)
    assert (output / "target.gguf").read_text() == "weights"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_a_checkpoint_comes_back_from_a_gguf_file(tmp_path, architecture):
    folder, file, widened = tmp_path / "model", tmp_path / "model.gguf", tmp_path / "widened"
    make_checkpoint(folder, architecture, head_dim=32)  # whole blocks in every matrix
    write_tokenizer(folder, 331)
    gguf_file.write_gguf(folder, file, "Q8_0")
    gguf_checkpoint.write_checkpoint(file, widened)
    original, found = load_checkpoint(folder), load_checkpoint(widened)
    assert replace(found.decoder, ropes=original.decoder.ropes) == original.decoder
    ours, theirs = (each.decoder.ropes["default"] for each in (found, original))
    np.testing.assert_array_equal(ours.inv_freq, theirs.inv_freq)
    for name in original.decoder.tensors():
        values, expected = found.tensors.read(name), original.tensors.read(name)
        np.testing.assert_allclose(values, expected, atol=0.01 * np.abs(expected).max())
