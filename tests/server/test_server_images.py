"""Images in OpenAI's and Ollama's APIs, with their own clients."""

from __future__ import annotations

import base64
import io

import httpx
import ollama
import pytest
from nodes import MISSING
from servers import MODEL, serving
from towers import picture, save_pictured

from edgespec import LLM, export
from edgespec.export import ExportOptions

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

TEXT = "what is it?"
PLAIN = {"max_tokens": 8, "temperature": 0}


def png(given):
    file = io.BytesIO()
    given.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


IMAGE = png(picture(40, 20))
URL = f"data:image/png;base64,{IMAGE}"


@pytest.fixture(scope="module", params=["smolvlm", "gemma4", "qwen3_vl"])
def llm(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("images")
    save_pictured(folder / "checkpoint", request.param, sharp=12.0)
    export.make(folder / "checkpoint", folder / "bundle", None, ExportOptions(precision="fp32"))
    with LLM(folder / "bundle", threads=1, context=512) as opened:
        yield opened


@pytest.fixture(scope="module")
def running(llm):
    with serving(llm, parallel=2) as server:
        yield server


@pytest.fixture(scope="module")
def expected(llm):
    shown = {"type": "image", "image": picture(40, 20)}
    content = [shown, {"type": "text", "text": TEXT}]
    return llm.chat([{"role": "user", "content": content}], max_new_tokens=8).text


def asked(*urls):
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "low"}} for url in urls]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": TEXT}]}]


def test_openais_client_shows_an_image(running, expected):
    with running.client() as client:
        chat = client.chat.completions.create(model=MODEL, messages=asked(URL), **PLAIN)
        assert chat.choices[0].message.content == expected
        parts = [
            {"type": "input_image", "image_url": URL, "detail": "auto"},
            {"type": "input_text", "text": TEXT},
        ]
        answer = client.responses.create(
            model=MODEL,
            input=[{"role": "user", "content": parts}],
            max_output_tokens=8,
            temperature=0,
        )
        assert answer.output_text == expected


def test_ollamas_client_shows_an_image(running, expected):
    message = {"role": "user", "content": TEXT, "images": [IMAGE]}
    client = ollama.Client(running.url)
    options = {"num_predict": 8, "temperature": 0}
    answer = client.chat(model=MODEL, messages=[message], options=options)
    assert answer.message.content == expected
    answer = client.generate(model=MODEL, prompt=TEXT, images=[IMAGE], options=options)
    assert (answer.response, answer.context) == (expected, None)
    streamed = client.generate(
        model=MODEL, prompt=TEXT, images=[IMAGE], options=options, stream=True, logprobs=True
    )
    assert "".join(each.response for each in streamed) == expected
    system = [{"role": "system", "content": "be brief"}]
    chat = client.chat(model=MODEL, messages=[*system, message], options=options)
    text = client.generate(
        model=MODEL, prompt=TEXT, system="be brief", images=[IMAGE], options=options
    )
    assert text.response == chat.message.content != expected
    assert "vision" in client.show(MODEL).capabilities


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"images": ["#"]}, "not in base64"),
        ({"images": ["aGk="]}, "a picture cannot be read"),
        ({"images": [IMAGE], "raw": True}, "images and raw are given"),
        ({"images": [IMAGE], "suffix": "b"}, "suffix and images are given"),
        ({"images": [IMAGE], "context": [1]}, "context and images are given"),
    ],
    ids=str,
)
def test_images_beside_a_prompt_are_refused_with_a_reason(running, fields, words):
    response = running.post({"model": MODEL, "prompt": TEXT, **fields}, "/api/generate")
    assert response.status_code == 400
    assert words in response.json()["error"]


def test_what_can_do_it_says_so(running):
    [model] = httpx.get(f"{running.url}/v1/models").json()["data"]
    assert "images" in model["capabilities"]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png;base64,aGk=", "a picture cannot be read"),
        (f"data:image/png;base64,{IMAGE[: len(IMAGE) // 8 * 4]}", "a picture cannot be read"),
        ("data:image/png;base64,#", "not in base64"),
        ("file:///etc/passwd", "nothing is fetched"),
        ("/etc/passwd", "an image is at '/etc/passwd': nothing is fetched"),
        ("http://127.0.0.1/a.png", "nothing is fetched"),
    ],
)
def test_bad_images_are_refused_with_a_reason(running, url, words):
    response = running.post({"messages": asked(url)}, "/v1/chat/completions")
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
    assert len(response.content) < 500


def test_images_of_systems_and_answers_are_refused(running):
    for role in ("system", "assistant"):
        messages = [{**asked(URL)[0], "role": role}, *asked()]
        response = running.post({"messages": messages}, "/v1/chat/completions")
        assert response.status_code == 400
        assert f"a message of {role} has an image" in response.json()["error"]["message"]
        parts = [{"type": "input_image", "image_url": URL}]
        given = [{"role": role, "content": parts}, {"role": "user", "content": "hi"}]
        response = running.post({"input": given}, "/v1/responses")
        assert response.status_code == 400
        assert f"a message of {role} has an image" in response.json()["error"]["message"]
