"""The comparison of rows in other company, and what native graphs give it."""

from __future__ import annotations

import numpy as np
import pytest
from native_llms import with_library
from pairs import LONG_PROMPT
from small_configs import RECURRENT
from toys import toy_model

from edgespec.llm.llm import inside
from edgespec.measuring.bits import compare_bits


@with_library
@pytest.mark.parametrize(
    "name", ["llama", "half", "small-caches", "stranger", "gemma2", "gpt_oss", *RECURRENT]
)
def test_rows_have_the_same_bits_in_any_company(natives, name):
    llm = natives(name)
    tokens = llm.tokenizer.encode(LONG_PROMPT)
    bits = compare_bits(inside(llm).engine.target, tokens, len(tokens) - 60)
    assert (bits.rows > 100, bits.differing) == (True, 0)
    llm.forget()
    assert not any(model.pool.used for model in inside(llm).models.values())


def test_comparing_sees_a_row_that_depends_on_others():
    tokens = np.random.default_rng(0).integers(50, size=60).tolist()
    model = toy_model()
    assert compare_bits(model, tokens, 20).differing == 0
    exact = model.graph

    def inexact(feeds):
        return {"logits": exact(feeds)["logits"] + np.float32(1e-6 * len(feeds["input_ids"]))}

    model.graph = inexact
    found = compare_bits(model, tokens, 20)
    assert found.differing > 20
    assert found.where[0].startswith("chunks of 64 at 2")
