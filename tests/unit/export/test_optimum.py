"""Optimum runs in a Python of its own, and never in a program that is none."""

from __future__ import annotations

import sys

import pytest

from edgespec.errors import ExportError
from edgespec.export.adopted.source import export_by_optimum


def test_without_optimum_its_installation_is_told(tmp_path):
    with pytest.raises(ExportError, match="needs optimum's ONNX exporter: run pip"):
        export_by_optimum("gpt2", tmp_path / "onnx")


@pytest.mark.parametrize("program", [None, "", "/Applications/Editor.app/Contents/MacOS/Editor"])
def test_a_program_with_python_inside_is_not_started_again(monkeypatch, tmp_path, program):
    package = tmp_path / "optimum" / "exporters" / "onnx"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(ExportError, match="has one built in: run optimum-cli yourself"):
        export_by_optimum("gpt2", tmp_path / "onnx")
