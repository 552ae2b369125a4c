"""A real model, where there is one: `EDGESPEC_REAL_MODELS` names a folder with `smollm2-135m`.

That is SmolLM2-135M-Instruct as transformers would save it; `.ci/run` prepares it. Random weights
and the embedded pair have no outliers and no chat template, and say little of what quantization
does to a model that people use.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest
import torch
from hard_texts import HARD_TEXTS
from pairs import ENGINES, logits_of
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM

from edgespec import LLM
from edgespec.measuring.native import compare_bits
from edgespec.measuring.perplexity import Reading
from edgespec.models import load_checkpoint
from edgespec.tuning.texts import PASSAGES

CHECKPOINT = Path(os.environ.get("EDGESPEC_REAL_MODELS", ""), "smollm2-135m")
PROSE = PASSAGES[0]
CODE = PASSAGES[3]  # repeats itself, so that lookups have something to find
# No part of what weights are fitted to.
UNSEEN = """My grandmother kept her recipes in a tin that had once held biscuits. Most of them were
written on the backs of envelopes, in a hand that grew smaller towards the edge of the paper, and
none of them said how long anything should stay in the oven. You were supposed to know. When she
died the tin went to my aunt, who does not cook, and from her to me. I tried the plum cake first.
It took me four attempts and a long telephone call with a neighbour of hers to find out that a cup
meant the blue cup, the one with the broken handle, which nobody had thought of keeping.

Explain to a new colleague how to prepare the monthly report. First collect the numbers from the
three branches, which arrive by the fifth of each month. Check that the totals agree with those of
the bank, and ask the branch concerned if they do not. Then write a summary of one page: what was
sold, what was returned, and what is likely to change. Do not use more than two charts.
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "EDGESPEC_REAL_MODELS" not in os.environ,
        reason="EDGESPEC_REAL_MODELS names no folder with smollm2-135m",
    ),
]
engines = pytest.mark.parametrize("engine", ENGINES)


@pytest.fixture(scope="module")
def original():
    """The same weights in transformers, in fp32."""
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """The model by engine and precision, None for the default one, each exported once."""
    from edgespec.cli import main

    folder = tmp_path_factory.mktemp("real")

    @cache
    def bundle(precision):
        path = folder / str(precision)
        options = [] if precision is None else ["--precision", precision]
        assert main(["export", str(CHECKPOINT), "-o", str(path), *options]) == 0
        return path

    @cache
    def loaded(engine, precision, draft="none"):
        return LLM(bundle(precision), draft=draft, device=engine, threads=2, context=512)

    return loaded


@pytest.fixture(scope="module")
def file():
    """The GGUF file that the checkpoint was made from."""
    path = CHECKPOINT.with_suffix(".gguf")
    if not path.is_file():
        pytest.skip(f"EDGESPEC_REAL_MODELS has no {path.name} beside the checkpoint")
    return path


def test_a_gguf_file_has_the_tokens_of_its_checkpoint(file):
    found = Tokenizer.from_str(load_checkpoint(file).tokenizer_files["tokenizer.json"])
    expected = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    # The original splits numbers into digits, which transformers leaves out as it reads GGUF.
    digits = pre_tokenizers.Digits(individual_digits=True)
    expected.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in (*HARD_TEXTS, *PASSAGES, UNSEEN):
        ids = found.encode(text).ids
        assert ids == expected.encode(text).ids
        assert found.decode(ids) == expected.decode(ids)


def test_a_gguf_file_has_the_text_of_its_checkpoint(file, load, tmp_path):
    from edgespec.cli import main

    path = tmp_path / "of-file"
    assert main(["export", str(file), "-o", str(path), "--precision", "fp32"]) == 0
    found = LLM(path, draft="none", device="cpu", threads=2, context=512)
    expected = load("cpu", "fp32")
    for prompt in (PROSE[:300], CODE[:300], UNSEEN[:200]):
        texts = [llm.generate(prompt, max_new_tokens=48) for llm in (found, expected)]
        assert texts[0].tokens == texts[1].tokens
    question = [{"role": "user", "content": "What is a prime number?"}]
    assert found.chat(question, max_new_tokens=32).text == (
        expected.chat(question, max_new_tokens=32).text
    )
    scores = [Reading(llm, UNSEEN).evaluate().nats.perplexity for llm in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], rel=1e-3)


@engines
def test_in_fp32_it_predicts_what_transformers_does(load, original, engine):
    llm = load(engine, "fp32")
    tokens = llm.tokenizer.encode(PROSE)
    surprise = torch.nn.functional.cross_entropy(
        torch.tensor(logits_of(original, tokens)[:-1]), torch.tensor(tokens[1:])
    )
    # Measured: 1e-5.
    assert Reading(llm, PROSE).evaluate().nats.value == pytest.approx(float(surprise), abs=1e-4)


@engines
@pytest.mark.parametrize(
    ("precision", "kl", "agreement"),
    [("int8", 0.02, 0.85), ("int4-small", 0.6, 0.5)],
)
def test_quantized_it_predicts_about_the_same(load, engine, precision, kl, agreement):
    """Half or twice of what was measured, so that only a fault is beyond it."""
    against = (
        Reading(load(engine, precision), PROSE, reference=load(engine, "fp32")).evaluate().against
    )
    assert against.kl.value < kl
    assert against.agreement > agreement


@engines
def test_four_bits_keep_the_model(load, engine):
    """By default, on text that nothing was fitted to."""
    found = Reading(load(engine, None), UNSEEN, reference=load(engine, "fp32")).evaluate()
    assert found.nats.perplexity < 1.12 * found.against.nats.perplexity
    assert found.against.kl.value < 0.13
    assert found.against.agreement > 0.75


@engines
@pytest.mark.parametrize(
    ("precision", "question"),
    # The original's choices are clear: by 0.04 at least, which fp32 keeps, and by 0.5.
    [("fp32", "Say hi."), ("int8", "How many days are in a week?")],
)
def test_it_answers_as_the_original_does(load, original, engine, precision, question):
    llm, chat = load(engine, precision), [{"role": "user", "content": question}]
    answer = llm.chat(chat, max_new_tokens=40)
    assert answer.finish_reason == "stop"
    prompt = llm.chat_tokens(chat)
    likeliest = logits_of(original, [*prompt, *answer.tokens]).argmax(axis=1)
    assert answer.tokens == likeliest[len(prompt) - 1 : -1].tolist()


@engines
@pytest.mark.parametrize("precision", [None, "int8"])
def test_rows_are_the_same_bits_in_chunks_trees_and_resumed_texts(load, engine, precision):
    llm = load(engine, precision)
    text = llm.tokenizer.encode(PROSE)[:70]
    found = compare_bits(llm.engine.target, text, 20)
    assert found.rows > 80
    assert found.differing == 0, found.where


@engines
@pytest.mark.parametrize("draft", ["lookup", "recycling"])
def test_drafts_do_not_change_the_text(load, engine, draft):
    """Not with quantized weights either, where activations are rounded."""
    plain = load(engine, None).generate(CODE, max_new_tokens=32)
    drafted = load(engine, None, draft).generate(CODE, max_new_tokens=32)
    assert plain.exact
    assert drafted.tokens == plain.tokens
    assert drafted.accepted > 0
