"""The prompts that a target answers, and the devices that it answers on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from checkout import ROOT

from edgespec.errors import InputError
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.training.device import TorchDevice
from edgespec.training.prompts import MIX, TOOLS, Prompt, mixed_prompt
from edgespec.training.texts import texts_of


def test_the_mix_has_all_kinds_and_few_prompts_twice():
    prompts = [mixed_prompt(number) for number in range(1000)]
    assert prompts == [mixed_prompt(number) for number in range(1000)]
    assert [each.kind for each in prompts[:5]] == list(MIX)
    assert not [each.text for each in prompts if "{" in each.text]
    assert len({each.text for each in prompts}) > 800
    assert {each.chat for each in prompts if each.kind == "code"} == {True, False}
    assert all(bool(each.tools) == (each.kind == TOOLS) for each in prompts)


def test_functions_are_in_the_prompt_whatever_the_template_knows(monkeypatch):
    tokenizer = Tokenizer.from_folder(BUNDLE)
    prompt = next(each for each in map(mixed_prompt, range(5)) if each.tools)
    assert prompt.tokens(tokenizer) == tokenizer.encode(prompt.text)  # there is no template
    plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    knowing = "{{ tools | length }} tools:" + plain
    for template, wanted in ((plain, "You can call these functions"), (knowing, "1 tools:<user>")):
        monkeypatch.setattr(tokenizer, "_chat_source", template)
        monkeypatch.setattr(tokenizer, "_tool_source", template)
        one = replace(prompt, tools=prompt.tools[:1])
        text = tokenizer.decode(one.tokens(tokenizer))
        assert wanted in text
        assert prompt.text in text
    assert Prompt("text", "", ids=(3, 4)).tokens(tokenizer) == [3, 4]


def test_prompts_are_answered_at_two_temperatures_in_turn():
    tokenizer = Tokenizer.from_folder(BUNDLE)
    asked = []

    def write(prompts, heat, seed, enough):
        asked.append((len(prompts), list(heat), seed))
        return [[*prompt, 7] for prompt in prompts]

    texts = texts_of([], tokenizer, 64, write)
    assert texts.count >= 10_000
    found = list(texts.windows([5, 2, 9], 2, bool))
    assert asked == [(2, [0.8, 0.0], 5), (1, [0.8], 9)]
    assert [len(some) for some in found] == [2, 1]
    assert found[0][1] == [*mixed_prompt(2).tokens(tokenizer)[:48], 7]
    assert texts.kind(2) == MIX[2]


def test_beginnings_of_given_texts_are_prompts_too(tmp_path):
    tokenizer = Tokenizer.from_folder(BUNDLE)
    file = tmp_path / "code.txt"
    file.write_text((ROOT / "setup.py").read_text("utf-8"), "utf-8")
    cut = texts_of([file], tokenizer, 64, None)
    texts = texts_of([file], tokenizer, 64, lambda prompts, *_: [list(each) for each in prompts])
    assert texts.count == cut.count
    [[found]] = texts.windows([1], 1, bool)
    [[whole]] = cut.windows([1], 1, bool)
    assert found == whole[:16]
    with pytest.raises(InputError, match="there is no text: give --text, or leave out --no-gen"):
        texts_of([], tokenizer, 64, None)


def test_a_device_that_is_not_there_is_refused_by_name():
    missing = next(n for n in ("xpu", "mps", "cuda") if not getattr(torch, n).is_available())
    with pytest.raises(InputError, match=rf"device is '{missing}', which PyTorch .* doesn't find"):
        TorchDevice.of(missing)


def test_memory_limits_how_many_texts_are_side_by_side():
    device = TorchDevice.of("cpu", 1000)
    assert device.memory == 1000
    assert [device.texts_at_once(size) for size in (1, 100, 10_000)] == [32, 4, 1]
