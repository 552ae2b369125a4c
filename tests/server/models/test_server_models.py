"""A server of several models: each answers as alone, and clients are told of all."""

from __future__ import annotations

import asyncio
import gc
import signal
import weakref
from shutil import copytree

import httpx
from checkpoints import make_checkpoint, write_tokenizer
from commandline import FAST, fails
from ggufs import write_gguf
from pairs import with_eos
from servers import PLACE, PROMPT, refused, serving, started, until
from several_models import ASKED, NAMES, loaded, states, text

from edgespec import bundle, export
from edgespec.export import ExportOptions
from edgespec.llm.llm import inside
from edgespec.llm.load.options import LoadOptions
from edgespec.runtime.sampling import grammar
from edgespec.serve.models import Models
from edgespec.serve.served_model import ServedModel


def in_use(running):
    """What Ollama's clients hear of the loaded models: when each is to be unloaded."""
    found = httpx.get(f"{running.url}/api/ps").json()["models"]
    return {each["name"].partition(":")[0]: each["expires_at"] for each in found}


def test_a_model_that_nobody_uses_is_unloaded_and_loaded_again(several, expected):
    with serving(several(1, kept=0.3)) as running:
        assert text(running, "first") == expected["first"]
        until(lambda: loaded(running) == [])
        assert text(running, "first") == expected["first"]


def test_a_model_that_nobody_uses_gives_back_what_it_kept_of_texts(several, expected):
    models = several(1, rest=0.3)
    with serving(models) as running:
        for _ in range(2):
            assert text(running, "first") == expected["first"]
            pool = inside(models.served[0].llm).engine.target.pool
            until(lambda pool=pool: not pool.used)
        assert loaded(running) == ["first"]


def test_a_model_stays_while_it_is_used(several):
    models = several(1, kept=0)
    [model] = models.served

    async def use():
        with models.claim(model) as claim, models.claim(model) as other:
            await claim.loaded
            models.end(other)
            models.expect_end(model)
            assert model.llm is not None
        assert model.llm is None

    asyncio.run(use())
    models.stop()


def test_one_timer_waits_for_a_model_whoever_has_used_it(several):
    models = several(1, kept=300)
    [model] = models.served
    timers = []

    async def use():
        for _ in range(9):
            with models.claim(model) as claim:
                await claim.loaded
            timers.append((model.ending, model.resting))

    asyncio.run(use())
    models.stop()
    assert [each.cancelled() for pair in timers for each in pair] == [True] * 16 + [False] * 2


def test_a_request_says_how_long_its_model_stays(several, expected):
    with serving(several(1)) as running:
        assert text(running, "first") == expected["first"]
        assert in_use(running)["first"].startswith("3000-")

        def asked(**body):
            given = running.post({"model": "first", "stream": False, **body}, "/api/generate")
            assert given.status_code == 200, given.text
            return given.json()["done_reason"]

        assert asked(keep_alive="10m") == "load"
        assert not in_use(running)["first"].startswith("3000-")
        assert asked(keep_alive=-1) == "load"
        assert in_use(running)["first"].startswith("3000-")
        assert asked(keep_alive=0) == "unload"
        assert (loaded(running), in_use(running)) == ([], {})
        assert asked(keep_alive=0) == "unload"  # it is not loaded for that
        assert asked(prompt="x", keep_alive=0, raw=True, options={"num_predict": 2}) == "length"
        until(lambda: loaded(running) == [])
        refused = running.post({"model": "first", "keep_alive": "soon"}, "/api/generate")
        assert refused.status_code == 400
        assert "keep_alive is 'soon'" in refused.json()["error"]


def test_each_is_loaded_when_it_is_asked_for_and_answers_as_alone(several, expected):
    with serving(several(3)) as running:
        assert set(states(running).values()) == {"unloaded"}
        assert text(running, "second") == expected["second"]
        assert loaded(running) == ["second"]
        for name in NAMES:
            assert text(running, name) == expected[name]
        assert loaded(running) == [*NAMES]
        assert running.post(ASKED).json()["model"] == "first"  # who names none
        numbers = running.metrics()
        assert numbers['edgespec_model_loaded{model="third"}'] == 1
        assert numbers['edgespec_new_tokens_total{model="first"}'] == 16
        assert numbers['edgespec_texts_total{finish_reason="length",model="second"}'] == 2


def test_both_apis_list_them(several, bundles):
    with serving(several()) as running:
        silent = running.post({"model": "second:latest"}, "/api/generate")
        assert silent.json()["done_reason"] == "load"
        tags = httpx.get(f"{running.url}/api/tags").json()["models"]
        told = [(each["name"], each["status"], each["digest"]) for each in tags]
        assert told == [
            ("first:latest", "unloaded", bundles["first"].digest),
            ("second:latest", "loaded", bundles["second"].digest),
        ]
        (ready,) = httpx.get(f"{running.url}/api/ps").json()["models"]
        assert (ready["name"], ready["context_length"]) == ("second:latest", 256)
        one = httpx.get(f"{running.url}/v1/models/second:latest").json()
        assert (one["id"], one["status"], one["context_length"]) == (
            "second",
            {"value": "loaded"},
            256,
        )


def test_a_file_is_called_what_it_says_in_ollamas_api(tmp_path):
    make_checkpoint(tmp_path / "model", "llama")
    write_tokenizer(tmp_path / "model", 331)
    write_gguf(tmp_path / "model", tmp_path / "file.gguf", "Q4_0", **{"general.file_type": 15})
    served = []
    for name in ("source", "int4", "fp32"):
        export.make(tmp_path / "file.gguf", tmp_path / name, "none", ExportOptions(name))
        served.append(ServedModel(name, bundle.load(tmp_path / name), LoadOptions(**PLACE)))
    with serving(Models(served)) as running:
        tags = httpx.get(f"{running.url}/api/tags").json()["models"]
        details = [each["details"] for each in tags]
        assert [each["format"] for each in details] == ["gguf"] * 3
        told = [each["quantization_level"] for each in details]
        assert told == ["Q4_K_M", "int4", "fp32"]
        shown = running.post({"model": "source"}, "/api/show").json()
        assert shown["details"] == details[0]


def test_tokens_and_descriptions_need_no_loading(several, bundles):
    with serving(several()) as running:
        body = {"model": "second", "content": "hello"}
        assert running.post(body, "/tokenize").json()["tokens"]
        shown = running.post({"model": "second"}, "/api/show").json()
        assert shown["model_info"]["general.architecture"] == "qwen2"
        assert loaded(running) == []


def test_another_name_is_refused_with_what_helps(several):
    with serving(several()) as running:
        given = running.post({"model": "gpt-5", **ASKED})
        refused(given, 404, "model 'gpt-5' not found: use 'first' or 'second', or start the server")
        assert "--any-model" in given.text
        given = running.post({"model": "first:7b", "prompt": "a"}, "/api/generate")
        assert given.status_code == 404
        assert "--any-model" in given.json()["error"]
        assert loaded(running) == []


def test_the_first_answers_any_name_if_it_may(several, expected):
    with serving(several(any_name=True)) as running:
        for name in ("gpt-5", "first", "qwen:7b"):
            answer = running.post({"model": name, **ASKED}).json()
            assert (answer["model"], answer["choices"][0]["text"]) == ("first", expected["first"])
        assert text(running, "second") == expected["second"]
        body = {"model": "llama3", "prompt": "a", "stream": False, "options": {"num_predict": 2}}
        assert running.post(body, "/api/generate").json()["eval_count"] == 2
        # Each line of an answer of Ollama's repeats the name.
        assert running.post({**body, "model": "x" * 9000}, "/api/generate").status_code == 404


# The command


def test_several_models_of_the_command_line(start, bundles, tmp_path, expected):
    copytree(bundles["second"].path, tmp_path / "other")
    process = start(
        "serve",
        bundles["first"].path,
        tmp_path / "other",
        "--max-models=1",
        "--any-model",
        "--port=0",
        *FAST,
        "--draft=none",
        "--context=256",
    )
    _, url = started(process)

    def listed():
        found = httpx.get(f"{url}/v1/models").json()["data"]
        return {each["id"]: each["status"]["value"] for each in found}

    assert listed() == {"bundle": "loaded", "other": "unloaded"}  # the first one is loaded at once
    for name, of in (("other", "second"), ("anything", "first"), ("other:latest", "second")):
        answer = httpx.post(f"{url}/v1/completions", json={"model": name, **ASKED}, timeout=60)
        assert answer.json()["choices"][0]["text"] == expected[of]
    assert listed() == {"bundle": "unloaded", "other": "loaded"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_what_goes_with_one_model_alone_is_said(cli, bundles):
    first = bundles["first"].path
    second = bundles["second"].path
    fails(cli("serve", first, second, "--draft", first), "--draft is", "one model alone")
    fails(cli("serve", first, first, "--port=0"), "two models are called 'bundle'")
    fails(cli("serve", first, "--max-models=0"), "--max-models is 0")
    fails(cli("serve", first, "no-such-model", "--port=0"), "there is no model 'no-such-model'")


def test_what_grammars_need_is_made_before_a_server_answers(served_bundle, tmp_path, monkeypatch):
    """No other thread goes on meanwhile."""
    path = with_eos(served_bundle, tmp_path / "bundle", 0)
    model = ServedModel("first", bundle.load(path), LoadOptions(draft="none", **PLACE))
    monkeypatch.setattr(grammar, "LLTokenizer", None)
    with model.load() as llm:
        assert llm.generate(PROMPT, regex="[ab]c").text[1:] == "c"


def test_what_grammars_need_goes_with_a_model_that_nobody_uses(served_bundle, tmp_path):
    path = with_eos(served_bundle, tmp_path / "bundle", 0)
    model = ServedModel("first", bundle.load(path), LoadOptions(draft="none", **PLACE))
    made = weakref.ref(model._grammars)
    with model.load() as llm:
        expected = llm.generate(PROMPT, regex="[ab]c").text
    del llm
    model.forget()
    gc.collect()
    assert made() is None
    with model.load() as llm:
        assert llm.generate(PROMPT, regex="[ab]c").text == expected
