"""A target in PyTorch against its native graph, and the texts that it reads and writes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from native_llms import with_library
from parity import PROMPT, SAME, SAME_STATES, Text, distance, load
from small_configs import CHANGING, RECURRENT

from edgespec import bundle as bundles
from edgespec import export
from edgespec.errors import DeviceError, ExportError, InputError
from edgespec.export import ExportOptions
from edgespec.models.embedded import BUNDLE
from edgespec.training import target_model
from edgespec.training.device import TorchDevice
from edgespec.training.target_model import TorchTarget
from edgespec.training.target_texts import TargetReader, TargetWriter
from edgespec.training.text_pass import TextPass

CPU = TorchDevice(torch.device("cpu"), torch.float32, 1 << 30)
LENGTH = 40
TEXTS = [PROMPT[:LENGTH], PROMPT[LENGTH : 2 * LENGTH]]


def places(*numbers):
    return torch.arange(*numbers).expand(len(TEXTS), -1)


def exported(folder, architecture, precision="fp32"):
    own = CHANGING if architecture == "llama4_text" else {}
    make_checkpoint(folder / "model", architecture, **own)
    export.make(folder / "model", folder / "bundle", options=ExportOptions(precision))
    return bundles.load(folder / "bundle")


@with_library
@pytest.mark.parametrize(
    "architecture",
    # Norms of heads, soft caps and windows, chunks, gated attention, sinks, latents, experts.
    ["qwen2", "qwen3", "gemma2", "llama4_text", "olmo2", "gpt_oss", "deepseek_v2", "glm4_moe",
     "apertus", "cohere2", "qwen3_vl_text", *RECURRENT, "qwen3_next"],
)  # fmt: skip
def test_logits_are_those_of_the_native_graph(tmp_path, monkeypatch, architecture):
    monkeypatch.setattr("edgespec.training.recurrent._ROWS", 16)  # several parts of each pass
    same = SAME_STATES if architecture in (*RECURRENT, "qwen3_next") else SAME
    bundle = exported(tmp_path, architecture)
    target = TorchTarget(bundle, CPU)
    hidden, _ = target.forward(torch.tensor(TEXTS), TextPass(places(LENGTH)))
    found = target.logits(hidden, torch.arange(2 * LENGTH)).view(2, LENGTH, -1)
    model = load(bundle)
    for text, logits in zip(TEXTS, found.numpy(), strict=True):
        assert distance(logits, Text(model).read(text)) < same
    cache = target.begin(LENGTH)
    for start, stop in ((0, 20), (20, 21), (21, LENGTH)):
        part = torch.tensor(TEXTS)[:, start:stop]
        hidden, _ = target.forward(part, TextPass(places(start, stop), cache))
        logits = target.logits(hidden, torch.arange(2 * (stop - start)))
        assert distance(logits.view(2, stop - start, -1), found[:, start:stop]) < same


def test_several_streams_are_refused_by_name(tmp_path):
    with pytest.raises(ExportError, match="has several streams of rows, of which no draft head"):
        TorchTarget(exported(tmp_path, "gemma3n_text"), CPU)


def test_an_unknown_operator_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.delitem(target_model.OPERATORS, "ShortConv")
    with pytest.raises(InputError, match="has ShortConv, which training can't read: choose anoth"):
        TorchTarget(exported(tmp_path, "lfm2"), CPU)


@pytest.mark.parametrize("architecture", RECURRENT)
def test_rows_that_fill_up_change_no_state(tmp_path, architecture):
    """Prompts of different lengths lie side by side, and each goes on from its own end."""
    target = TorchTarget(exported(tmp_path, architecture), CPU)
    lengths = torch.tensor([9, 1, LENGTH])
    texts = torch.tensor([PROMPT[start : start + LENGTH + 5] for start in (0, 50, 100)])
    shown = torch.where(torch.arange(LENGTH) < lengths[:, None], texts[:, :LENGTH], 0)
    cache = target.begin(LENGTH + 5)
    target.forward(shown, TextPass(torch.arange(LENGTH).expand(3, -1), cache, lengths))
    behind = lengths[:, None] + torch.arange(5)
    hidden, _ = target.forward(texts.gather(1, behind), TextPass(behind, cache))
    every = torch.arange(LENGTH + 5).expand(3, -1)
    whole, _ = target.forward(texts, TextPass(every))
    wanted = whole.view(3, LENGTH + 5, -1)[torch.arange(3)[:, None], behind]
    assert distance(hidden.view(3, 5, -1).numpy(), wanted.numpy()) < SAME_STATES


@with_library
def test_rows_that_are_read_are_those_of_the_bundle():
    """But for the 8 bits to which operators round activations."""
    opened = bundles.load(BUNDLE)
    target = TorchTarget(opened, CPU, (0, 3, opened.target.layers))
    tokens = target.tokenizer.encode("def add(a, b):\n    return a + b\n" * 8)
    short, found = TargetReader(target).read([tokens[:9], tokens])
    assert short.tokens.tolist() == tokens[:9]
    for name in ("features", "top_logits"):
        one, other = (getattr(each, name)[:9].astype(np.float32) for each in (short, found))
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=0.01)
    logits = Text(load(opened)).read(tokens)
    assert (found.top_ids[:, 0] == logits.argmax(-1)).mean() > 0.9
    first, _, last = np.split(found.features.astype(np.float32), 3, axis=1)
    np.testing.assert_allclose(first, target.embedded(torch.tensor(tokens)), rtol=1e-3)
    graph = target.graph
    normed = last / np.sqrt((last * last).mean(axis=1, keepdims=True) + graph.eps) * graph.norm
    own = normed @ graph.projection.rows(np.arange(logits.shape[1])).T
    best = np.take_along_axis(own, found.top_ids.astype(np.int64), axis=1)
    np.testing.assert_allclose(best - best[:, :1], found.top_logits, atol=0.1)


def test_greedy_texts_are_the_likeliest_tokens_and_sampled_ones_are_not():
    target = TorchTarget(bundles.load(BUNDLE), CPU)
    prompts = [target.tokenizer.encode(text) for text in ("def add(a", "import os\n", "class A:\n")]
    texts = TargetWriter(target, 48).write(prompts, [0.0, 0.0, 1.5], 3, bool)
    again = TargetWriter(target, 48).write(prompts, [0.0, 0.0, 1.5], 3, bool)
    assert texts == again
    likeliest = []
    for prompt, text, read in zip(prompts, texts, TargetReader(target).read(texts), strict=True):
        assert text[: len(prompt)] == prompt
        assert len(prompt) < len(text) <= 48
        assert len(text) == 48 or text[-1] in target.role.eos_ids
        at = slice(len(prompt) - 1, len(text) - 1)
        # Equal ones may change places where rows are read together.
        best = np.where(read.top_logits[at] > -0.02, read.top_ids[at], -1)
        likeliest.append((best == read.tokens[at.start + 1 :, None]).any(1).all())
    assert likeliest == [True, True, False]


def test_texts_end_with_the_tokens_that_end_them(monkeypatch):
    """Texts that go on are the same when others have ended and are dropped."""
    target = TorchTarget(bundles.load(BUNDLE), CPU)
    prompts = [target.tokenizer.encode(text) for text in ("def add(a", "import os\n", "class A:\n")]
    texts = TargetWriter(target, 64).write(prompts, [0.0] * 3, 0, bool)
    end = texts[0][len(prompts[0]) + 2]
    writer = TargetWriter(target, 64)
    monkeypatch.setattr(writer, "_ends", torch.tensor([end]))
    for whole, text, prompt in zip(
        texts, writer.write(prompts, [0.0] * 3, 0, bool), prompts, strict=True
    ):
        new = whole[len(prompt) :]
        count = new.index(end) + 1 if end in new else len(new)
        assert text == whole[: len(prompt) + count]


def test_numbers_that_are_none_are_refused(monkeypatch):
    target = TorchTarget(bundles.load(BUNDLE), CPU, (2,))
    forward = target.forward

    def broken(tokens, rows):
        hidden, features = forward(tokens, rows)
        return hidden, features * torch.inf

    monkeypatch.setattr(target, "forward", broken)
    with pytest.raises(DeviceError, match="computed NaN or infinity: use another device"):
        TargetReader(target).read([[1, 2, 3]])
