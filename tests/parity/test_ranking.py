"""Reranking: parity with transformers, of models that rank and of those that write text."""

from __future__ import annotations

from shutil import copytree

import numpy as np
import pytest
import torch
from checkpoints import make_checkpoint
from embeddings import make_embedding
from encoders import make_ranker
from ggufs import write_gguf
from native_llms import with_library
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from edgespec import LLM, export
from edgespec.errors import CheckpointError, ContextLengthError, InputError
from edgespec.export import ExportOptions
from edgespec.llm.llm import inside
from edgespec.llm.ranking import INSTRUCTION
from edgespec.models import load_checkpoint

pytestmark = with_library
RANKERS = {
    "bert": {},
    "camembert": {"pad_token_id": 1},
    "distilbert": {"hidden_dim": 160},
    "eurobert": {"num_key_value_heads": 2},
    "eurobert-first": {"kind": "eurobert", "classifier_pooling": "bos"},
    "eurobert-mean": {"kind": "eurobert", "classifier_pooling": "mean"},
    "gte": {"pad_token_id": 1, "type_vocab_size": 2},
    "modernbert": {"local_attention": 16},
    "modernbert-mean": {"kind": "modernbert", "classifier_pooling": "mean"},
    "mpnet": {},
    "roberta": {"pad_token_id": 1},
    "xlm-roberta": {"pad_token_id": 1, "type_vocab_size": 2},
}
PLAIN = {"threads": 1, "draft": "none"}
QUERY = "what is a tree"
DOCUMENTS = ["a tree is a plant", "the quick brown fox", "one two three " * 30, "x", "tree?"]
TEMPLATE = (
    "{% for each in messages %}{{ each.role }}: {{ each.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}{% if enable_thinking is defined and not enable_thinking %}"
    "(no thought) {% endif %}{% endif %}"
)

JUDGE = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
FILES_TEMPLATE = (
    f"system: {JUDGE}\nuser: <Instruct>: {INSTRUCTION}\n<Query>: {{query}}\n"
    "<Document>: {document}\n(no thought) "
)


@pytest.fixture(scope="module", params=RANKERS)
def ranker(request, tmp_path_factory):
    """A model that ranks, as transformers and as a bundle, and its tokenizer."""
    folder = tmp_path_factory.mktemp(request.param)
    options = {"kind": request.param, **RANKERS[request.param]}
    model = make_ranker(folder / "checkpoint", **options)
    export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    with LLM(folder / "bundle", **PLAIN) as llm:
        yield llm, model, Tokenizer.from_file(str(folder / "checkpoint" / "tokenizer.json"))


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    """The same of a model that writes text, and in whose vocabulary yes and no are."""
    folder = tmp_path_factory.mktemp("writer")
    model, tokenizer = make_writer(folder / "checkpoint")
    export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    with LLM(folder / "bundle", **PLAIN) as llm:
        yield llm, model, tokenizer


def make_writer(folder):
    """Save the checkpoint; returns transformers' model and the tokenizer."""
    model = make_checkpoint(folder, "qwen3", vocab_size=340, max_position_embeddings=2048)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(["yes", "no"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return model, tokenizer


def write_ranker(checkpoint, folder, **metadata):
    """Write a GGUF file as llama.cpp's converter writes rerankers; returns its path.

    Its scores are the rows of yes and no of the output projection, which is left out.
    """
    source = copytree(checkpoint, folder / "checkpoint")
    tensors = load_file(source / "model.safetensors")
    head = tensors.pop("lm_head.weight")
    save_file(tensors, source / "model.safetensors")
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    answers = [tokenizer.token_to_id(each) for each in ("yes", "no")]
    fields = {"qwen3.pooling_type": 4, "tokenizer.chat_template.rerank": FILES_TEMPLATE}
    scores = {"cls.output.weight": np.asarray(head[answers], np.float32)}
    write_gguf(source, folder / "m.gguf", extra=scores, **{**fields, **metadata})
    return folder / "m.gguf"


def scores_of(ranked):
    """Returns scores in the order of the documents."""
    return [each.score for each in sorted(ranked, key=lambda each: each.index)]


def test_an_instruction_that_a_model_does_not_read_is_refused(ranker):
    with pytest.raises(InputError, match="reads no instruction: leave instruction out"):
        ranker[0].rerank(QUERY, DOCUMENTS, instruction="Find plants")


@torch.no_grad()
def test_scores_are_those_of_transformers(ranker):
    llm, model, tokenizer = ranker
    found = llm.rerank(QUERY, DOCUMENTS)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    for document, score in zip(DOCUMENTS, scores_of(found), strict=True):
        read = tokenizer.encode(QUERY, document)
        parts = {}
        if getattr(model.config, "type_vocab_size", 1) > 1:
            parts = {"token_type_ids": torch.tensor([read.type_ids])}
        logit = model(torch.tensor([read.ids]), **parts).logits[0, 0]
        assert score == pytest.approx(float(torch.sigmoid(logit)), abs=1e-5)
    assert not inside(llm).engine.target.pool.used


def test_a_document_that_is_too_long_is_cut(ranker):
    llm, _, tokenizer = ranker
    document = "tree " * 2000
    read = tokenizer.encode(QUERY, document)
    count = llm.context_length - (len(read.ids) - 2000)
    assert llm.rerank(QUERY, [document]) == llm.rerank(QUERY, ["tree " * count])
    with pytest.raises(ContextLengthError, match=r"the query is too long: .*: shorten the query"):
        llm.rerank(document, ["a"])


def test_a_model_that_ranks_does_nothing_else(ranker):
    llm, _, _ = ranker
    llm.warm_up()
    with pytest.raises(InputError, match=r"ranks texts, and writes none: use LLM\.rerank"):
        llm.generate("a")
    with pytest.raises(InputError, match="makes scores of texts, and no embeddings"):
        llm.embed("a")


@torch.no_grad()
def test_a_model_that_writes_text_is_asked_for_yes_and_no(writer):
    llm, model, tokenizer = writer
    found = scores_of(llm.rerank(QUERY, DOCUMENTS))
    yes, no = (tokenizer.token_to_id(each) for each in ("yes", "no"))
    for document, score in zip(DOCUMENTS, found, strict=True):
        asked = f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {document}"
        text = f"system: {JUDGE}\nuser: {asked}\n(no thought) "
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        logits = model(torch.tensor([ids])).logits[0, -1, [no, yes]]
        assert score == pytest.approx(float(torch.softmax(logits, 0)[1]), abs=1e-5)
    other = scores_of(llm.rerank(QUERY, DOCUMENTS, instruction="Find plants"))
    assert not np.allclose(found, other, atol=1e-4)


def test_a_file_of_a_model_that_says_yes_or_no(writer, tmp_path):
    llm, _, _ = writer
    make_writer(tmp_path / "writer")
    file = write_ranker(tmp_path / "writer", tmp_path)
    export.make(file, tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", **PLAIN) as other:
        for options in ({}, {"instruction": "Find plants"}):
            expected = scores_of(llm.rerank(QUERY, DOCUMENTS, **options))
            found = scores_of(other.rerank(QUERY, DOCUMENTS, **options))
            assert found == pytest.approx(expected, abs=1e-5)
        asked = scores_of(other.rerank(QUERY, DOCUMENTS, instruction="Find {document} by {query}"))
        expected = scores_of(llm.rerank(QUERY, DOCUMENTS, instruction="Find {document} by {query}"))
        assert asked == pytest.approx(expected, abs=1e-5)  # places are the template's alone
        long = "tree {query} " * 3000
        assert 0 < other.rerank(QUERY, [long])[0].score < 1
        with pytest.raises(InputError, match=r"ranks texts, and writes none"):
            other.generate("a")
        with pytest.raises(ContextLengthError, match="the query is too long"):
            other.rerank(long, ["a"])


@pytest.mark.parametrize("template", [None, "{query}"])
def test_a_file_that_ranks_without_a_template_is_refused(tmp_path, template):
    make_writer(tmp_path / "writer")
    fields = {"tokenizer.chat_template.rerank": template}
    file = write_ranker(tmp_path / "writer", tmp_path, **fields)
    with pytest.raises(CheckpointError, match=r"rerank.* must be a text with .query. and"):
        load_checkpoint(file)


def test_a_long_document_of_a_model_that_writes_text_is_cut(writer):
    llm, _, _ = writer
    found = llm.rerank(QUERY, ["tree " * 3000, "x"])
    assert sorted(each.index for each in found) == [0, 1]
    with pytest.raises(ContextLengthError, match="the query is too long"):
        llm.rerank("tree " * 3000, ["x"])


def test_the_best_documents_and_no_others(ranker):
    llm, _, _ = ranker
    whole = llm.rerank(QUERY, DOCUMENTS)
    assert llm.rerank(QUERY, DOCUMENTS, top_n=2) == whole[:2]
    assert llm.rerank(QUERY, DOCUMENTS, top_n=99) == whole
    assert llm.rerank(QUERY, []) == []


@pytest.mark.parametrize(
    ("query", "documents", "options", "reason"),
    [
        ("", ["a"], {}, "the query is empty"),
        (1, ["a"], {}, "the query is 1: give a text"),
        ("a", ["b", " "], {}, r"documents\[1\] is empty"),
        ("a", "b", {}, "documents is 'b': give a list of texts"),
        ("a", [["b"]], {}, r"documents\[0\] is \['b'\]: give a text"),
        ("a", ["b"], {"top_n": 0}, "top_n is 0"),
        ("a", ["\ud800"], {}, "not valid Unicode"),
    ],
    ids=str,
)
def test_what_cannot_be_ranked_is_named(ranker, query, documents, options, reason):
    with pytest.raises(InputError, match=reason):
        ranker[0].rerank(query, documents, **options)


def test_models_that_cannot_rank(tmp_path):
    make_embedding(tmp_path / "checkpoint", "qwen3")
    export.make(tmp_path / "checkpoint", tmp_path / "bundle", options=ExportOptions("fp32"))
    for bundle, reason in (
        (tmp_path / "bundle", "makes embeddings, and ranks no texts"),
        (None, "no chat template by which"),
    ):
        with LLM(bundle, **PLAIN) as llm, pytest.raises(InputError, match=reason):
            llm.rerank("a", ["b"])
