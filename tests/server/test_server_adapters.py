"""Adapters as clients ask for them: by the name of a model, as with vLLM, and as with llama.cpp."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from adapters import write_peft
from commandline import fails
from native_llms import with_library
from servers import MODEL, PLACE, PROMPT, make_bundle, refused, serving
from transformers import AutoModelForCausalLM

from edgespec import LLM

pytestmark = with_library

ASKED = {"prompt": PROMPT, "temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("adapted")
    make_bundle(made)
    model = AutoModelForCausalLM.from_pretrained(made / "checkpoint")
    for seed, name in enumerate(("poet", "clerk")):
        write_peft(made / name, model, seed=seed)
    return made


@pytest.fixture(scope="module")
def llm(folder):
    lora = (folder / "poet", f"{folder / 'clerk'}:0")
    with LLM(folder / "bundle", draft="lookup", lora=lora, **PLACE) as found:
        yield found


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm, parallel=4) as found:
        yield found


@pytest.fixture(scope="module")
def texts(llm):
    """Texts by adapters."""
    found = {
        each: llm.generate(PROMPT, adapters=each, max_new_tokens=12).text
        for each in (None, "poet", "clerk", ())
    }
    assert found[None] == found["poet"]
    assert len(set(found.values())) == 3
    return found


def text(response):
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"]


@pytest.mark.parametrize("name", ["poet", "clerk", "clerk:latest"])
def test_an_adapter_is_asked_for_as_a_model(running, texts, name):
    given = running.post({"model": name, **ASKED})
    assert text(given) == texts[name.partition(":")[0]]
    assert given.json()["model"] == name.partition(":")[0]


def test_the_model_has_the_adapters_that_it_was_loaded_with(running, texts):
    assert text(running.post(ASKED)) == text(running.post({"model": MODEL, **ASKED})) == texts[None]


@pytest.mark.parametrize(
    ("lora", "own"),
    [
        ([], None),
        ([{"id": 1, "scale": 1.0}], "clerk"),
        ([{"id": "clerk", "scale": 1}], "clerk"),
        ([{"id": 0, "scale": 0}], ()),
    ],
)
def test_scales_are_asked_for_as_of_llama_cpp(running, texts, lora, own):
    assert text(running.post({"lora": lora, **ASKED})) == texts[own]


def test_texts_of_several_adapters_run_at_once(running, texts):
    names = ["poet", "clerk", MODEL, "clerk"]
    with ThreadPoolExecutor(len(names)) as clients:
        given = clients.map(lambda name: running.post({"model": name, **ASKED}), names)
    assert [text(each) for each in given] == [texts.get(name, texts[None]) for name in names]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/messages", {"max_tokens": 5}),
        ("/api/chat", {"stream": False}),
    ],
)
def test_other_apis_take_names_of_adapters(running, path, body):
    said = [{"role": "user", "content": PROMPT}]
    given = running.post({"model": "clerk", "messages": said, **body}, path)
    assert (given.status_code, given.json()["model"]) == (200, "clerk")


def test_clients_see_which_adapters_there_are(running):
    listed = httpx.get(f"{running.url}/v1/models").json()["data"]
    assert [(each["id"], each.get("parent")) for each in listed] == [
        (MODEL, None),
        ("poet", MODEL),
        ("clerk", MODEL),
    ]
    assert httpx.get(f"{running.url}/v1/models/clerk").json()["parent"] == MODEL
    assert httpx.get(f"{running.url}/lora-adapters").json() == [
        {"id": 0, "path": "poet", "scale": 1.0},
        {"id": 1, "path": "clerk", "scale": 0.0},
    ]


def test_adapters_that_there_are_not_are_refused(running):
    refused(running.post({"model": "poets", **ASKED}), 404, "use 'MODEL'".replace("MODEL", MODEL))
    for wrong in (2, "poets"):
        given = running.post({"lora": [{"id": wrong, "scale": 1}], **ASKED})
        refused(given, 400, "use a number below 2, or one of poet, clerk")
    refused(running.post({"lora": [{"id": 0}], **ASKED}), 400, "lora.0.scale is missing")
    refused(running.post({"lora": [{"id": 0, "scale": 1e9}], **ASKED}), 400, "scale of adapter")


def test_scales_of_all_texts_are_set_as_of_llama_cpp(running, texts):
    def set_to(*scales):
        asked = [{"id": number, "scale": scale} for number, scale in scales]
        given = running.post(asked, "/lora-adapters")
        assert (given.status_code, given.json()) == (200, {"success": True})

    try:
        set_to((1, 1.0))
        assert text(running.post(ASKED)) == texts["clerk"]
        listed = httpx.get(f"{running.url}/lora-adapters").json()
        assert [each["scale"] for each in listed] == [0.0, 1.0]
        assert text(running.post({"lora": [{"id": 0, "scale": 1}], **ASKED})) == texts["poet"]
        set_to()
        assert text(running.post(ASKED)) == texts[()]
        for wrong, reason in (
            ([{"id": 2, "scale": 1}], "use a number below 2, or one of poet, clerk"),
            ([{"id": 0, "scale": 1e9}], "the scale of adapter poet is"),
            ([{"id": 0}], "scale is missing"),
            ({"id": 0}, "array"),
        ):
            refused(running.post(wrong, "/lora-adapters"), 400, reason)
        assert text(running.post(ASKED)) == texts[()]
    finally:
        set_to((0, 1.0), (1, 0.0))
    assert text(running.post(ASKED)) == texts["poet"]


def test_adapters_go_with_one_model_and_names_of_their_own(cli, folder):
    bundle = folder / "bundle"
    said = cli("serve", bundle, bundle, "--port=0", "--lora", folder / "poet")
    fails(said, "--lora is", "give it with one model alone")
    write = folder / "other" / "bundle"
    write.parent.mkdir()
    (folder / "poet").rename(write)
    try:
        said = cli("serve", bundle, "--port=0", "--lora", write)
        fails(said, "two of the model and its adapters are called 'bundle': rename one")
    finally:
        write.rename(folder / "poet")
