"""Decoders that rank, by logits of tokens or a score of the last one: parity with transformers."""

from __future__ import annotations

import pytest
import torch
from checkpoints import ODD_SHAPES, edit_json, make_checkpoint, randomize, write_tokenizer
from embeddings import write
from encoders import make_ranker as make_encoder_ranker
from native_llms import with_library
from small_configs import SPECIAL
from tokenizers import Tokenizer
from transformers import CONFIG_MAPPING, AutoModelForSequenceClassification

from edgespec import LLM, export
from edgespec.bundle import Reranking
from edgespec.cli import main
from edgespec.errors import CheckpointError, ContextLengthError, InputError, UnsupportedModelError
from edgespec.export import ExportOptions
from edgespec.models import load_checkpoint

pytestmark = with_library
PLAIN = {"threads": 1, "draft": "none"}
QUERY = "what is a tree"
DOCUMENTS = ["a tree is a plant", "the quick brown fox", "one two three " * 30, "x", "tree?"]
TEMPLATE = (
    "{% for each in messages %}{% if each.role == 'system' %}instruction: {{ each.content }}\n"
    "{% elif each.role in ('query', 'document') %}{{ each.role }}: {{ each.content }}\n{% endif %}"
    "{% endfor %}Relevance:{% if add_generation_prompt %} (answer){% endif %}"
)
CASES = {
    "two tokens": {"kind": "qwen2", "tie_word_embeddings": True},
    "two tokens apart": {"kind": "qwen3", "answers": (300, 4), "opened": True},
    "one token": {"kind": "llama", "answers": (17, None)},
    "an instruction unasked": {"kind": "qwen2", "instruction": "Find plants"},
}


PAIRS, MESSAGES = ["text"], ["text", "message"]  # what a transformer says that it takes
LABELLED = {
    "llama": {"kind": "llama"},
    "qwen2": {"kind": "qwen2", "tie_word_embeddings": True},
    "qwen3 pairs": {"kind": "qwen3", "steps": PAIRS},
    "qwen3 messages": {"kind": "qwen3", "steps": MESSAGES},
}


def step(kind, path=""):
    return {"type": f"sentence_transformers.{kind.lower()}.{kind}", "path": path}


def make_ranker(folder, kind, answers=(5, 9), opened=False, instruction="", **options):
    """Save a checkpoint that scores by logits of tokens; returns transformers' model."""
    model = make_checkpoint(folder, kind, **{"max_position_embeddings": 512, **options})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    write(folder / "modules.json", [step("Transformer"), step("LogitScore", "1_LogitScore")])
    score = {"true_token_id": answers[0], "false_token_id": answers[1]}
    write(folder / "1_LogitScore" / "config.json", score)
    given = {"add_generation_prompt": True} if opened else {}
    write(
        folder / "sentence_bert_config.json",
        {"transformer_task": "text-generation", "processing_kwargs": {"chat_template": given}},
    )
    if instruction:
        prompts = {"prompts": {"usual": instruction}, "default_prompt_name": "usual"}
        write(folder / "config_sentence_transformers.json", prompts)
    return model


def make_labelled(folder, kind, steps=None, **options):
    """Save a checkpoint of transformers' class with one label; returns that model."""
    config = CONFIG_MAPPING[kind](**{**ODD_SHAPES, "num_labels": 1, **options})
    model = AutoModelForSequenceClassification.from_config(config)
    randomize(model)
    model.eval().save_pretrained(folder)
    write_tokenizer(folder, 331)
    if steps is not None:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
        write(folder / "modules.json", [step("Transformer")])
        taken = {name: {"method": "forward"} for name in steps}
        write(folder / "sentence_bert_config.json", {"modality_config": taken})
    return model


def opened(make, case, folder):
    """Yield a model that ranks, its case, transformers' model and the tokenizer."""
    model = make(folder / "checkpoint", **case)
    export.make(folder / "checkpoint", folder / "bundle", options=ExportOptions("fp32"))
    with LLM(folder / "bundle", **PLAIN) as llm:
        yield llm, case, model, Tokenizer.from_file(str(folder / "checkpoint" / "tokenizer.json"))


@pytest.fixture(scope="module", params=CASES)
def ranker(request, tmp_path_factory):
    """A model that scores by logits of tokens, see `opened`."""
    yield from opened(make_ranker, CASES[request.param], tmp_path_factory.mktemp("ranker"))


def expected(case, model, tokenizer, document, instruction):
    """The score of a document, as sentence-transformers defines it."""
    asked = f"instruction: {instruction}\n" if instruction else ""
    answer = " (answer)" if case.get("opened") else ""
    text = f"{asked}query: {QUERY}\ndocument: {document}\nRelevance:{answer}"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    true, false = case.get("answers", (5, 9))
    score = logits[true] if false is None else logits[true] - logits[false]
    return float(torch.sigmoid(score))


@pytest.mark.parametrize("instruction", [None, "Find trees"])
def test_scores_are_logits_behind_the_chat_template(ranker, instruction):
    llm, case, *reference = ranker
    asked = instruction or case.get("instruction", "")
    for each in llm.rerank(QUERY, DOCUMENTS, instruction=instruction):
        score = expected(case, *reference, DOCUMENTS[each.index], asked)
        assert each.score == pytest.approx(score, abs=1e-5)


@pytest.fixture(scope="module", params=LABELLED)
def labelled(request, tmp_path_factory):
    """A model that transformers gives one score, see `opened`."""
    yield from opened(make_labelled, LABELLED[request.param], tmp_path_factory.mktemp("labelled"))


@torch.no_grad()
def test_classes_with_one_label_score_the_last_token(labelled):
    llm, case, model, tokenizer = labelled
    for each in llm.rerank(QUERY, DOCUMENTS):
        document = DOCUMENTS[each.index]
        ids = tokenizer.encode(QUERY, document).ids
        if case.get("steps") == MESSAGES:
            text = f"query: {QUERY}\ndocument: {document}\nRelevance:"
            ids = tokenizer.encode(text, add_special_tokens=False).ids
        score = torch.sigmoid(model(torch.tensor([ids])).logits[0, 0])
        assert each.score == pytest.approx(float(score), abs=1e-5)


def test_an_instruction_is_read_where_messages_are(labelled):
    llm, case, *_ = labelled
    if case.get("steps") == MESSAGES:
        usual = llm.rerank(QUERY, DOCUMENTS)
        assert llm.rerank(QUERY, DOCUMENTS, instruction="Find plants") != usual
    else:
        with pytest.raises(InputError, match="the model reads no instruction"):
            llm.rerank(QUERY, DOCUMENTS, instruction="Find plants")


def test_several_labels_and_prompts_of_pairs_are_refused(tmp_path):
    make_labelled(tmp_path, "qwen2", steps=PAIRS)
    prompts = {"prompts": {"usual": "Find"}, "default_prompt_name": "usual"}
    write(tmp_path / "config_sentence_transformers.json", prompts)
    with pytest.raises(UnsupportedModelError, match="default_prompt_name='usual' is not supported"):
        load_checkpoint(tmp_path)
    edit_json(tmp_path / "config.json", id2label={"0": "no", "1": "yes"})
    (tmp_path / "config_sentence_transformers.json").unlink()
    with pytest.raises(UnsupportedModelError, match=r"id2label=.* use a model with one label"):
        load_checkpoint(tmp_path)


def test_the_step_that_an_encoder_has_alone_and_its_longest_pair(tmp_path):
    """As sentence-transformers saves cross-encoders now."""
    make_encoder_ranker(tmp_path / "checkpoint", "bert")
    for steps in (False, True):
        if steps:
            write(tmp_path / "checkpoint" / "modules.json", [step("Transformer")])
            write(tmp_path / "checkpoint" / "sentence_bert_config.json", {"max_seq_length": 64})
        found = load_checkpoint(tmp_path / "checkpoint")
        assert found.ranking == Reranking("first")
        assert found.decoder.context_length == (64 if steps else 512)


def pool(folder):
    """Say that rows become vectors, as sentence-transformers does."""
    write(folder / "modules.json", [step("Transformer"), step("Pooling", "1_Pooling")])
    write(folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True})


@pytest.mark.parametrize("make", [make_labelled, make_encoder_ranker])
def test_a_folder_that_says_how_rows_become_vectors_ranks_nothing(tmp_path, make):
    make(tmp_path, "qwen2" if make is make_labelled else "bert")
    assert load_checkpoint(tmp_path).ranking is not None
    pool(tmp_path)
    found = load_checkpoint(tmp_path)
    assert found.ranking is None
    assert found.embedding is not None
    assert found.decoder.scorer is None


def test_rows_that_are_scored_are_not_scaled_as_logits_are(tmp_path):
    make_labelled(tmp_path, "minicpm3", **SPECIAL["minicpm3"], dim_model_base=16)
    assert load_checkpoint(tmp_path).decoder.norm.factor == 1


def test_a_template_of_queries_and_documents_is_not_called_broken(tmp_path, capsys):
    make_ranker(tmp_path / "checkpoint", "qwen2")
    assert main(["export", str(tmp_path / "checkpoint"), "-o", str(tmp_path / "bundle")]) == 0
    assert "the chat template" not in "".join(capsys.readouterr())


def test_a_long_document_is_cut_and_a_long_query_refused(ranker):
    llm = ranker[0]
    assert 0 < llm.rerank(QUERY, ["tree " * 3000])[0].score < 1
    with pytest.raises(ContextLengthError, match="the query is too long"):
        llm.rerank("tree " * 3000, ["x"])


def test_it_does_nothing_else(ranker):
    llm = ranker[0]
    llm.warm_up()
    with pytest.raises(InputError, match=r"ranks texts, and writes none: use LLM\.rerank"):
        llm.generate("a")


@pytest.mark.parametrize(
    ("template", "instruction", "reason"),
    [
        ("{{ messages[0].content }}", None, "leaves out a query or a document"),
        (TEMPLATE.replace("system", "nobody"), "Find plants", "the model reads no instruction"),
    ],
    ids=["pair", "instruction"],
)
def test_templates_that_leave_something_out(tmp_path, template, instruction, reason):
    make_ranker(tmp_path / "checkpoint", "qwen2")
    (tmp_path / "checkpoint" / "chat_template.jinja").write_text(template)
    export.make(tmp_path / "checkpoint", tmp_path / "bundle", options=ExportOptions("fp32"))
    with LLM(tmp_path / "bundle", **PLAIN) as llm, pytest.raises(InputError, match=reason):
        llm.rerank(QUERY, DOCUMENTS, instruction=instruction)


def test_files_that_are_not_supported_are_named(tmp_path):
    make_ranker(tmp_path, "qwen2")
    file = tmp_path / "1_LogitScore" / "config.json"
    for wrong, reason in (
        ({"true_token_id": 331}, "logits of token 331, and the model has 331 tokens"),
        ({"true_token_id": None}, "true_token_id=.absent.* must be a token id"),
        ({"true_token_id": 5, "false_token_id": "no"}, "false_token_id='no' must be a token id"),
    ):
        edit_json(file, **wrong)
        with pytest.raises(CheckpointError, match=reason):
            load_checkpoint(tmp_path)
    edit_json(file, false_token_id=9)
    kwargs = {"chat_template": {"chat_template": "reranker"}}
    edit_json(tmp_path / "sentence_bert_config.json", processing_kwargs=kwargs)
    with pytest.raises(UnsupportedModelError, match="chat_template='reranker' is not supported"):
        load_checkpoint(tmp_path)
    edit_json(tmp_path / "sentence_bert_config.json", processing_kwargs=None)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(CheckpointError, match="ranks texts by its chat template, which is missing"):
        load_checkpoint(tmp_path)


def test_logits_that_are_more_than_products_are_refused(tmp_path):
    make_ranker(tmp_path, "gemma2")
    with pytest.raises(UnsupportedModelError, match="use a reranker whose logits are plain"):
        load_checkpoint(tmp_path)
