"""Lines of a batch that ask for vectors, of an embedding model and of one that makes texts."""

from __future__ import annotations

import numpy as np
import pytest
from batches import FEW, act_after, answers, completion, interrupt, write
from embeddings import make_served
from servers import PLACE, serving

from edgespec import LLM
from edgespec.api.embedding import Embedder
from edgespec.batch.answering import VectorsOfLine
from edgespec.cli import main
from edgespec.server.embeddings import EmbeddingsRequest

TEXTS = ["def add(a, b):\n", "class Tree:\n", "import os\n", "x = 1\n", "y = 2\n"]


def vectors(custom_id, asked, **fields):
    body = {"input": asked, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/embeddings", "body": body}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return make_served(tmp_path_factory.mktemp("served"))


@pytest.fixture
def batch(bundle, tmp_path):
    """Answer requests; returns the exit code and the answers."""

    def run(requests, out="out.jsonl", *more):
        given, output = write(tmp_path / "in.jsonl", requests), tmp_path / out
        options = ["--model-name=tiny", *FEW, *more]
        code = main(["batch", str(bundle), str(given), "-o", str(output), *options])
        return code, answers(output) if output.exists() else []

    return run


def body(answer):
    assert answer["response"]["status_code"] == 200, answer
    assert answer["error"] is None
    return answer["response"]["body"]


def test_a_line_has_the_body_of_the_servers_answer(batch, bundle):
    asked = [
        {"input": TEXTS[0]},
        {"input": TEXTS, "dimensions": 8, "model": "tiny"},
        {"input": [[5, 6, 7], [8]], "encoding_format": "base64", "user": "me"},
        {"input": TEXTS[1], "prompt_name": "query"},
    ]
    code, found = batch([vectors(f"v{place}", **_named(each)) for place, each in enumerate(asked)])
    assert code == 0
    assert [answer["custom_id"] for answer in found] == ["v0", "v1", "v2", "v3"]
    with LLM(bundle, **PLACE) as llm, serving(llm) as running:
        for answer, each in zip(found, asked, strict=True):
            assert body(answer) == running.post(each, "/v1/embeddings").json()
        told = np.array([each["embedding"] for each in body(found[1])["data"]], np.float32)
        assert np.array_equal(told, llm.embed(TEXTS, dimensions=8))


def _named(fields):
    return {"asked" if name == "input" else name: value for name, value in fields.items()}


def test_what_is_wrong_is_said_in_its_line(batch):
    wrong = [
        (vectors("good", "x"), 200, None),
        (vectors("empty", ""), 400, "input"),
        (vectors("wide", "x", dimensions=65), 400, "the model's vectors have 64"),
        (vectors("long", [1] * 5000), 400, "the text is too long"),
        (vectors("prompt", "x", prompt_name="poem"), 400, "prompt_name is 'poem'"),
        (vectors("model", "x", model="gpt-4o"), 404, "use 'tiny'"),
        (vectors("field", "x", temperature=1), 400, "temperature is not supported"),
        (completion("text", "x"), 400, "the model makes embeddings, and no text"),
    ]
    code, found = batch([line for line, *_ in wrong])
    assert code == 4
    for (line, status, message), answer in zip(wrong, found, strict=True):
        assert answer["custom_id"] == line["custom_id"]
        assert answer["response"]["status_code"] == status, answer
        if message is not None:
            assert message in answer["error"]["message"]
            assert message in answer["response"]["body"]["error"]["message"]


def test_a_model_that_makes_texts_says_so(cli, tmp_path):
    given = write(tmp_path / "in.jsonl", [vectors("a", "x")])
    assert cli("batch", given, "-o", tmp_path / "out.jsonl", *FEW).code == 4
    [found] = answers(tmp_path / "out.jsonl")
    assert found["response"]["status_code"] == 400
    assert found["error"]["code"] == "embeddings_not_supported"


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_stopped_batch_goes_on_and_ends_alike(
    batch, tmp_path, monkeypatch, capsys, parallel, interruptible
):
    """Ctrl-C comes behind the second answer; later lines are left, and made at the next start."""
    lines = [vectors(f"v{place}", [text, TEXTS[0]]) for place, text in enumerate(TEXTS)]
    assert batch(lines, "undisturbed.jsonl")[0] == 0
    assert f"5 answers in {tmp_path / 'undisturbed.jsonl'}: " in capsys.readouterr().err
    with monkeypatch.context() as patch:
        act_after(patch, 2, interrupt)
        assert batch(lines, "out.jsonl", f"--parallel={parallel}")[0] == 130
    kept = answers(tmp_path / "out.jsonl.partial")[1:]
    assert 2 <= len(kept) <= 1 + parallel  # those under way may have ended as well
    made, make = [], Embedder.vectors

    def counted(self, *arguments):
        made.append(arguments)
        return make(self, *arguments)

    monkeypatch.setattr(Embedder, "vectors", counted)
    assert batch(lines)[0] == 0
    assert len(made) == len(TEXTS) - len(kept)
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "undisturbed.jsonl").read_bytes()


def test_a_line_that_is_cancelled_within_has_no_answer(bundle):
    """Between the texts of a line, and not only between lines."""
    with LLM(bundle, **PLACE) as llm:
        asked = EmbeddingsRequest(input=TEXTS)
        whole, cut = VectorsOfLine(llm, asked), VectorsOfLine(llm, asked)
        read, row = [], Embedder._row
        assert whole.tokens == 0
        assert len(whole.finish().vectors) == len(TEXTS)
        assert whole.tokens == sum(map(len, llm.embedder.tokens(TEXTS)))
        with pytest.MonkeyPatch.context() as patch:

            def reading(self, text, check):
                read.append(text)
                if len(read) == 2:
                    cut.cancel()
                return row(self, text, check)

            patch.setattr(Embedder, "_row", reading)
            assert cut.finish() is None
        assert (len(read), cut.tokens) == (2, 0)
