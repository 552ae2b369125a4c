"""Lets optimum export a model to ONNX, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from edgespec.errors import ExportError, reason

_INSTALL = 'pip install "edgespec[optimum]" in an environment of its own'


def export_by_optimum(model: str, folder: Path) -> str:
    """Exports a model with its past to a folder.

    Args:
        model: folder of a checkpoint, or a Hub id owner/name.
        folder: folder to create.

    Returns:
        The name and version of optimum's exporter.

    Raises:
        ExportError: if optimum is not installed, or refuses the model.
    """
    if not _installed():
        raise ExportError(f"--via optimum needs optimum's ONNX exporter: run {_INSTALL}")
    python = sys.executable or ""
    # A program that embeds Python, or was frozen as by PyInstaller, would start itself again.
    if hasattr(sys, "frozen") or not Path(python).name.lower().startswith(("python", "pypy")):
        raise ExportError(
            "--via optimum needs a Python interpreter, and this program has one built in: run "
            f"optimum-cli yourself, and export the folder that it makes ({_INSTALL})"
        )
    task = "--task", "text-generation-with-past"
    command = [python, "-m", "optimum.commands.optimum_cli", "export", "onnx", "--model", model]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*command, *task, str(folder)],
        capture_output=True, encoding="utf-8", errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ExportError(
            f"{model}: optimum did not export it ({reason(last)}): see what it supports at "
            "https://huggingface.co/docs/optimum-onnx"
        )
    return f"optimum-onnx {_version()}"


def _installed() -> bool:
    try:
        return find_spec("optimum.exporters.onnx") is not None
    except ModuleNotFoundError:  # optimum without its exporters, or none at all
        return False


def _version() -> str:
    try:
        return version("optimum-onnx")
    except PackageNotFoundError:  # before optimum 2 the exporter was part of it
        return version("optimum")
