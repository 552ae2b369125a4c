"""Options: one declaration each, from which checks, help and signatures follow."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import fields

import numpy as np
import pytest

from edgespec import LLM
from edgespec.cli.config_file import settings
from edgespec.errors import InputError
from edgespec.llm.chat import ChatOptions
from edgespec.llm.load.options import MAX_DRAFT_TOKENS, LoadOptions
from edgespec.llm.options import GenerationOptions
from edgespec.llm.sessions import Session

TAKERS = [
    (LoadOptions, LLM.__init__),
    *((GenerationOptions, each) for each in (LLM.generate, LLM.stream, LLM.agenerate, LLM.infill)),
    *((GenerationOptions, each) for each in (Session.generate, Session.stream)),
    *((ChatOptions, each) for each in (LLM.chat, LLM.chat_stream, LLM.achat)),
    *((ChatOptions, each) for each in (Session.chat, Session.chat_stream)),
]


@pytest.mark.parametrize(("kind", "taker"), TAKERS)
def test_signatures_show_all_options_and_their_defaults(kind, taker):
    parameters = inspect.signature(taker).parameters.values()
    shown = {each.name: each.default for each in parameters if each.kind == each.KEYWORD_ONLY}
    own = {"progress": None} if kind is LoadOptions else {}
    assert shown == {field.name: field.default for field in fields(kind)} | own


@pytest.mark.parametrize("kind", [LoadOptions, ChatOptions])
def test_help_explains_every_option(kind):
    text = pydoc.plain(pydoc.render_doc(kind))
    for field in fields(kind):
        assert f"|      {field.name}: " in text


def test_unknown_keywords_are_errors():
    with pytest.raises(TypeError, match=r"'gpu' \(did you mean gpu_layers\?\): use one of device,"):
        LLM(gpu=True)
    with pytest.raises(TypeError, match=r"'contxt' \(did you mean context\?\): use one of device,"):
        LLM(contxt=3)


def test_the_number_of_tokens_has_both_of_its_usual_names(tmp_path):
    with LLM(threads=1) as llm:
        texts = [llm.generate("def f(", **{name: 3}) for name in ("max_new_tokens", "max_tokens")]
        assert [text.new_tokens for text in texts] == [3, 3]
        assert llm.generate("def f(", max_tokens=3, max_new_tokens=3).new_tokens == 3
        with pytest.raises(InputError, match="max_new_tokens is 3 and max_tokens is 4, which are"):
            llm.generate("def f(", max_tokens=4, max_new_tokens=3)
    assert "; also max_tokens" in " ".join(inspect.getdoc(GenerationOptions).split())
    file = tmp_path / "settings.toml"
    file.write_text("max_tokens = 3")
    assert settings(str(file)) == {"max_new_tokens": 3}


def test_a_model_says_in_a_line_what_runs_it():
    llm = LLM(threads=1, draft="lookup")
    engine = llm.generate("def f(", max_tokens=1).engine
    assert llm.engines == {"target": engine}
    expected = f"<LLM python-7m: target on {engine}, draft lookup, context 2,048, "
    assert repr(llm).startswith(expected)
    assert repr(llm).endswith(" MiB of cpu>")
    llm.close()
    assert repr(llm) == "<LLM python-7m: closed>"


PUBLIC = """
achat agenerate bundle chat chat_stream chat_tokens close context_length draft draft_sources embed
embedder engines forget generate infill infill_prompt load_session options plan rerank reranker
sampling save_draft_memory session stream submit tokenizer warm_up
"""


def test_what_is_no_api_is_private():
    with LLM(threads=1) as llm, llm.session() as session:
        assert [name for name in dir(llm) if not name.startswith("_")] == PUBLIC.split()
        shown = [name for name in dir(session) if not name.startswith("_")]
        assert shown == [
            "chat",
            "chat_stream",
            "close",
            "generate",
            "save",
            "stream",
            "submit",
            "tokens",
        ]


def test_numbers_of_numpys_are_numbers():
    """As a sweep over `np.linspace` or a table's columns gives them."""
    options = {"max_new_tokens": np.int64(6), "temperature": np.float32(0.75), "seed": np.uint64(3)}
    plain = {name: number.item() for name, number in options.items()}
    assert GenerationOptions(**options) == GenerationOptions(**plain)
    assert type(LoadOptions(context=np.int32(64)).context) is int
    for name, value in (("top_k", np.bool_(True)), ("max_new_tokens", np.float64(3))):
        with pytest.raises(InputError, match=f"{name} is {value.item()}: give a whole number"):
            GenerationOptions(**{name: value})


@pytest.mark.parametrize("value", [None, 5, [None], "", [""]])
def test_stop_strings_that_are_none_are_refused(value):
    with pytest.raises(InputError, match=r"stop is .*: give strings of at least one character"):
        GenerationOptions(stop=value)


@pytest.mark.parametrize(
    ("kind", "name", "value", "wanted"),
    [
        (LoadOptions, "device", None, "give a device's name"),
        (LoadOptions, "draft_device", 0, "give a device's name"),
        (LoadOptions, "draft", "gpt", "use one of auto, none, model, parallel, head, layer-skip"),
        (GenerationOptions, "max_time", 0, "give seconds above 0"),
        (GenerationOptions, "draft_source", 3, "give a text"),
        (ChatOptions, "parallel_tool_calls", 1, "give True or False"),
    ],
)
def test_other_values_are_refused_with_what_to_give(kind, name, value, wanted):
    with pytest.raises(InputError, match=f"{name} is {value!r}: {wanted}"):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name", "least", "most"),
    [
        (LoadOptions, "sessions", 1, None),
        (LoadOptions, "threads", 1, 1024),
        (LoadOptions, "context", 2, None),
        (LoadOptions, "gpu_layers", 0, None),
        (LoadOptions, "memory", 1, 1 << 62),
        (GenerationOptions, "max_new_tokens", 1, None),
        (GenerationOptions, "tree_width", 1, None),
        (GenerationOptions, "num_assistant_tokens", 0, MAX_DRAFT_TOKENS),
        (GenerationOptions, "logprobs", 0, None),
        (ChatOptions, "thinking_budget", 0, None),
    ],
)
def test_counts_have_a_least_and_perhaps_a_most(kind, name, least, most):
    for value in (least, most or 10**6):
        assert getattr(kind(**{name: value}), name) == value
    for value in (least - 1, float(least), True):
        with pytest.raises(InputError, match=f"{name} .*: give a whole number of at least {least}"):
            kind(**{name: value})
    if most:
        with pytest.raises(InputError, match=f"{name} .*is {most + 1}: give {most} or less"):
            kind(**{name: most + 1})


def test_sizes_may_be_words():
    options = LoadOptions(memory="cpu=8GiB,gpu=900MB", prompt_cache_size="1.5G")
    assert options.limits == {"cpu": 8 << 30, "gpu": 900_000_000}
    assert options.prompt_cache_size == 3 << 29
    assert LoadOptions().prompt_cache_size == 2 << 30
    for wrong in ("2", "cpu=1GiB,cpu=2GiB", "gpu=", "0.1KB x"):
        with pytest.raises(InputError, match=r"size|name each device once"):
            LoadOptions(memory=wrong)
