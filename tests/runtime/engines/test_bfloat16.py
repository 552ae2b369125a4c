"""OpenVINO with products in bfloat16: chosen by name alone, and with texts of its own."""

from __future__ import annotations

import pytest
from commandline import PROMPT

from edgespec import LLM
from edgespec.errors import DeviceError
from edgespec.runtime import engines
from edgespec.runtime.deployment.device_names import cpu_engines
from edgespec.runtime.engines.cpu import openvino as module

NAME = "openvino:cpu-bf16"


class Core:
    """OpenVINO's core on a processor without products of bfloat16."""

    def get_property(self, device, name):
        assert (device, name) == ("CPU", "OPTIMIZATION_CAPABILITIES")
        return ["FP32", "INT8", "EXPORT_IMPORT"]


def test_a_processor_without_it_is_named_with_what_to_use(monkeypatch):
    monkeypatch.setattr(module, "core", Core)
    with pytest.raises(DeviceError, match=r"openvino:cpu-bf16: .* use openvino:cpu$"):
        LLM(device=NAME)


def test_the_cpu_does_not_choose_it():
    assert NAME not in [each.name for each in cpu_engines()]


@pytest.fixture
def here():
    try:
        return engines.engine(NAME)
    except DeviceError as error:
        pytest.skip(str(error))


def test_drafts_leave_its_texts_as_they_are(here):
    texts = {}
    for draft in ("none", "lookup", "model"):
        with LLM(device=NAME, draft_device="onnxruntime:cpu", draft=draft, threads=2) as llm:
            results = [llm.generate(each, max_new_tokens=60) for each in (PROMPT, "import ")]
        texts[draft] = [each.tokens for each in results]
        assert [each.engine for each in results] == [NAME, NAME]
    if results[0].exact:
        assert texts["none"] == texts["lookup"] == texts["model"]


def test_it_computes_something_else(here):
    (first, *_), (second, *_) = (
        [token.logprob for token in LLM(device=name, draft="none", threads=2).generate(
            PROMPT, max_new_tokens=4, logprobs=1
        ).logprobs]
        for name in (NAME, "openvino:cpu")
    )  # fmt: skip
    assert first != second
    assert first == pytest.approx(second, abs=0.1)
