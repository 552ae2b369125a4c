"""A real model, where there is one: `EDGESPEC_REAL_MODELS` names a folder with `smollm2-135m`.

That is SmolLM2-135M-Instruct as transformers would save it; `.ci/run` prepares it. Random weights
and the embedded pair have no outliers and no chat template, and say little of what quantization
does to a model that people use.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hard_texts import HARD_TEXTS
from native_llms import with_library
from pairs import logits_of
from real import FOLDER, needs
from tokenizers import Tokenizer, pre_tokenizers
from transformers import AutoModelForCausalLM

from edgespec import LLM
from edgespec.bundle import TARGET
from edgespec.llm.llm import inside
from edgespec.measuring.bits import compare_bits
from edgespec.measuring.perplexity import TokenizedText
from edgespec.models import load_checkpoint
from edgespec.tuning.texts import PASSAGES

NAME = "smollm2-135m"
FILE = f"{NAME}.gguf"  # that the checkpoint was made from
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

pytestmark = [pytest.mark.slow, needs(NAME), with_library]


@pytest.fixture(scope="module")
def original():
    """The same weights in transformers, in fp32."""
    return AutoModelForCausalLM.from_pretrained(FOLDER / NAME, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def load(real_bundle):
    """The model by precision, None for the default one."""

    @cache
    def loaded(precision, name=NAME):
        options = () if precision is None else ("--precision", precision)
        return LLM(real_bundle(name, *options), draft="auto", threads=1, context=512)

    return loaded


@needs(FILE)
def test_a_gguf_file_has_the_tokens_of_its_checkpoint():
    files = load_checkpoint(FOLDER / FILE).tokenizer_files
    found = Tokenizer.from_str(files["tokenizer.json"])
    expected = Tokenizer.from_file(str(FOLDER / NAME / "tokenizer.json"))
    # The original splits numbers into digits, which transformers leaves out as it reads GGUF.
    digits = pre_tokenizers.Digits(individual_digits=True)
    expected.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    for text in (*HARD_TEXTS, *PASSAGES, UNSEEN):
        ids = found.encode(text).ids
        assert ids == expected.encode(text).ids
        assert found.decode(ids) == expected.decode(ids)


@needs(FILE)
def test_a_gguf_file_keeps_its_numbers(load):
    """The checkpoint has them in fp16, so only activations differ, which are rounded to 8 bits."""
    found = TokenizedText(load(None, FILE), UNSEEN, reference=load("fp32")).evaluate()
    assert found.nats.perplexity == pytest.approx(found.against.nats.perplexity, rel=0.02)
    assert found.against.kl.value < 0.01


def test_in_fp32_it_predicts_what_transformers_does(load, original):
    llm = load("fp32")
    tokens = llm.tokenizer.encode(PROSE)
    surprise = torch.nn.functional.cross_entropy(
        torch.tensor(logits_of(original, tokens)[:-1]), torch.tensor(tokens[1:])
    )
    # Measured: 1e-5.
    assert TokenizedText(llm, PROSE).evaluate().nats.value == pytest.approx(
        float(surprise), abs=1e-4
    )


@pytest.mark.parametrize(
    ("precision", "kl", "agreement"),
    [("int8", 0.02, 0.85), (None, 0.13, 0.75)],
)
def test_quantized_it_predicts_about_the_same(load, precision, kl, agreement):
    """Half or twice of what was measured, on text that nothing was fitted to."""
    against = TokenizedText(load(precision), UNSEEN, reference=load("fp32")).evaluate().against
    assert against.kl.value < kl
    assert against.agreement > agreement


@pytest.mark.parametrize(
    ("precision", "question"),
    # The original's choices are clear: by 0.04 at least, which fp32 keeps, and by 0.5.
    [("fp32", "Say hi."), ("int8", "How many days are in a week?")],
)
def test_it_answers_as_the_original_does(load, original, precision, question):
    llm = load(precision)
    chat = [{"role": "user", "content": question}]
    answer = llm.chat(chat, max_new_tokens=40)
    assert answer.finish_reason == "stop"
    prompt = llm.chat_tokens(chat)
    likeliest = logits_of(original, [*prompt, *answer.tokens]).argmax(axis=1)
    assert answer.tokens == likeliest[len(prompt) - 1 : -1].tolist()


def test_rows_are_the_same_bits_in_chunks_and_trees(load):
    llm = load(None)
    text = llm.tokenizer.encode(PROSE)[:60]
    with inside(llm).engine.exclusive():
        found = compare_bits(inside(llm).models[TARGET], text, 20)
    assert found.rows > 80
    assert found.differing == 0, found.where


@pytest.mark.parametrize("draft", ["auto", "lookup", "recycling"])
def test_drafts_do_not_change_the_text(load, draft):
    """Not with quantized weights either, where activations are rounded."""
    llm = load(None)
    plain = llm.generate(CODE, max_new_tokens=32, draft_source="none")
    drafted = llm.generate(CODE, max_new_tokens=32, draft_source=draft)
    assert plain.exact
    assert drafted.tokens == plain.tokens
    assert drafted.accepted > 0
