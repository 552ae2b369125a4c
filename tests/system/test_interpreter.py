"""Processes of their own: which program runs them, and what is done where there is none."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest
from pairs import ENGINES

from edgespec import bundle as bundles
from edgespec.bundle import TARGET
from edgespec.models.embedded import BUNDLE
from edgespec.runtime.costs import profiles
from edgespec.runtime.costs.isolated import Job, measure_apart
from edgespec.runtime.engines import engine
from edgespec.runtime.engines.cpu import openvino
from edgespec.runtime.execution.model import Model
from edgespec.system.interpreter import interpreter


@pytest.fixture(autouse=True)
def cache(own_cache):
    return own_cache / "openvino"


@pytest.fixture
def frozen(monkeypatch):
    """As in a program that PyInstaller has made, which must not be started once more."""

    def start(*_arguments, **_options):
        raise AssertionError("the program was started")

    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(subprocess, "Popen", start)


@pytest.mark.parametrize("name", ["python", "python3.13", "pythonw.exe", "Python", "pypy3"])
def test_an_interpreter_is_known_by_its_name(monkeypatch, name):
    monkeypatch.setattr(sys, "executable", f"/somewhere/{name}")
    assert interpreter() == f"/somewhere/{name}"
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert interpreter() is None


@pytest.mark.parametrize("program", [None, "", "/Applications/Editor.app/Contents/MacOS/Editor"])
def test_a_program_that_embeds_python_is_no_interpreter(monkeypatch, program):
    monkeypatch.setattr(sys, "executable", program)
    assert interpreter() is None


def test_a_frozen_program_measures_in_its_own_process(frozen, caplog, capfd):
    bundle, seen = bundles.load(BUNDLE), []
    job = Job(bundle, {TARGET: (engine(ENGINES[0]),)}, threads=1, full=False)
    with caplog.at_level(logging.INFO):
        [profiled] = measure_apart([job], lambda *step: seen.append(step))
    found = profiled[TARGET]
    assert seen == [(job, TARGET, 256), (job, TARGET, 2048)]
    assert list(found.seconds[256]) == [1, 2, 4, 8, 32]
    assert profiles.recall(bundle, TARGET, (engine(ENGINES[0]),), 1) == found
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "measuring in this process", "target on onnxruntime",
    ]  # fmt: skip
    assert capfd.readouterr() == ("", "")


def loaded(monkeypatch):
    monkeypatch.setattr(openvino, "_CONVERT_FROM", 0)
    return Model.load(bundles.load(BUNDLE), TARGET, engine("openvino:cpu"), 1)


def test_a_frozen_program_converts_nothing_for_openvino(frozen, cache, monkeypatch, caplog):
    assert loaded(monkeypatch).executables
    assert list(cache.iterdir()) == []
    [warning] = caplog.records
    assert warning.message.startswith("OpenVINO's cache was not made (")
    assert warning.message.endswith("): reading ONNX instead")


def test_a_write_protected_cache_is_no_place_for_conversions(cache, monkeypatch, caplog):
    monkeypatch.setattr(openvino, "_convert", lambda *_: pytest.fail("converted in vain"))
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    assert loaded(monkeypatch).executables
    [warning] = caplog.messages
    assert warning.startswith(
        f"cannot write to the cache folder {cache.parent} (write-protected), "
    )


def test_what_another_process_has_converted_meanwhile_is_used(cache, monkeypatch, caplog):
    """It has the files mapped, and Windows lets nobody replace these."""
    convert = openvino._convert

    def late(graph, converted):
        assert convert(graph, converted) is None
        return "PermissionError: Access is denied"

    monkeypatch.setattr(openvino, "_convert", late)
    assert loaded(monkeypatch).executables
    assert {file.suffix for file in cache.iterdir()} == {".xml", ".bin"}
    assert caplog.records == []
