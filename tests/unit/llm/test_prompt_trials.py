"""Whether a GPU reads prompts through layers on the host is tried once, by time and by logits."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
from toys import VOCABULARY, toy_model

from edgespec.errors import DeviceError
from edgespec.llm.load.prompt_trial import reads_prompts
from edgespec.llm.load.trials import logit_distance
from edgespec.runtime.engines.portable import Device

GPU = Device("gpu:0", "a product", "1.0")
FAST, SLOW = (0.0, 1.28, 3.0, 5.56), (0.0, 3.0, 3.0, 5.56)  # when each reading begins and ends


class Tries:
    """Opens toys for a trial, and counts them."""

    def __init__(self, folder, noise=0.0):
        folder.mkdir(exist_ok=True)
        self.graph = folder / "key" / "portable.onnx"
        self.file = folder / "key.prompts.json"
        self.noise = noise
        self.opened = []

    def model(self, long):
        self.opened.append(long)
        if self.noise is None and long:
            raise DeviceError("no room")
        return toy_model(self.noise if long else 0.0)

    def passed(self, times=FAST, device=GPU, layers=4):
        clock = iter(times).__next__
        return reads_prompts(self.graph, device, layers, VOCABULARY + 3, self.model, clock)


def test_it_is_tried_once_and_kept(tmp_path):
    tries = Tries(tmp_path)
    assert tries.passed()
    assert tries.passed(())
    assert tries.opened == [True, False]
    kept = json.loads(tries.file.read_text())
    assert kept == {
        "hardware": "a product",
        "version": "1.0",
        "layers": 4,
        "distance": 0.0,
        "here": pytest.approx(0.01),
        "there": pytest.approx(0.005),
    }


def test_what_is_slower_or_far_apart_stays_on_the_cpu(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        assert not Tries(tmp_path / "slow").passed(SLOW)
        assert not Tries(tmp_path / "far", noise=3.0).passed()
    assert "are read on the CPU: 11.7 ms a token there, 10 on the CPU" in caplog.text
    assert "on the CPU, since logits differ" in caplog.text


@pytest.mark.parametrize(
    ("device", "layers"),
    [(Device("gpu:0", "another", "1.0"), 4), (Device("gpu:0", "a product", "2"), 4), (GPU, 5)],
)
def test_other_devices_and_layers_are_tried_anew(tmp_path, device, layers):
    tries = Tries(tmp_path)
    assert tries.passed()
    assert not tries.passed(SLOW, device, layers)
    assert tries.opened == [True, False] * 2


@pytest.mark.parametrize("kept", ["[" * 9000, "{}", '{"hardware": 3}'])
def test_a_damaged_file_is_made_anew(tmp_path, kept):
    tries = Tries(tmp_path)
    tries.file.write_text(kept)
    assert tries.passed()
    assert tries.passed(())


def test_what_a_device_refuses_is_tried_again(tmp_path, caplog):
    tries = Tries(tmp_path, noise=None)
    assert not tries.passed()
    assert "prompts are read on the CPU for now: no room" in caplog.text
    assert not tries.file.exists()
    tries.noise = 0.0
    assert tries.passed()


def test_distances():
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    other = rows + np.float32([[1], [9], [2]])
    assert logit_distance(other, rows) == pytest.approx(9 / rows.std())
    assert logit_distance(other, rows, np.median) == pytest.approx(2 / rows.std())
    for of_rows in (np.max, np.median):
        assert logit_distance(rows * np.float32(np.nan), rows, of_rows) is None
        assert logit_distance(rows, 0 * rows, of_rows) is None
