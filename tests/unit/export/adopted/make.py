"""Makes the ONNX folders beside it: ``python make.py mistral gpt2`` and ``python make.py genai``.

The first two need optimum, in an environment of its own::

    pip install optimum-onnx onnxruntime "transformers<4.58" torch==2.13.0 tokenizers

``genai`` needs ``onnxruntime-genai`` and ``onnx-ir`` with a recent transformers instead.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2] / "support"))

from adopted import make_original  # noqa: E402

TASK = "text-generation-with-past"


def make(kind: str) -> None:
    """Export one model to the folder of its name."""
    output = HERE / kind
    shutil.rmtree(output, ignore_errors=True)
    with TemporaryDirectory() as folder:
        original = Path(folder) / "original"
        make_original(original, kind)
        if kind == "genai":
            _builder(original, output, Path(folder) / "cache")
            shutil.copyfile(original / "config.json", output / "config.json")
        else:
            _optimum(original, output)
        for name in ("tokenizer.json", "tokenizer_config.json"):  # as they were, not as saved
            shutil.copyfile(original / name, output / name)


def _optimum(original: Path, output: Path) -> None:
    module = "optimum.commands.optimum_cli"
    arguments = ["export", "onnx", "--model", original, "--task", TASK, output]
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def _builder(original: Path, output: Path, cache: Path) -> None:
    module = "onnxruntime_genai.models.builder"
    arguments = ["-i", original, "-o", output, "-p", "int4", "-e", "cpu", "-c", cache]
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        make(each)
