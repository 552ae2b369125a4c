"""Writes the model of a GGUF file as a checkpoint in fp16, for transformers and other peers.

    python benchmarks/gguf_checkpoint.py SmolLM2-135M-Instruct.Q4_1.gguf -o smollm2-135m

edgespec itself reads the file (docs/models.md). Quantized weights are widened to fp16, and tests
and benchmarks treat the result as the original model. Needs `pip install "edgespec[real]"`.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from common import exit_code
from safetensors.numpy import save_file

from edgespec.models import load_checkpoint


def main() -> None:
    parser = argparse.ArgumentParser(description="A GGUF file as a checkpoint in fp16.")
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder to create")
    arguments = parser.parse_args()
    if arguments.output.exists():
        parser.error(f"{arguments.output} exists: give another folder, or remove it")
    write_checkpoint(arguments.file, arguments.output)


def write_checkpoint(file: Path, folder: Path) -> None:
    """Write the model of a GGUF file to a new folder.

    Raises:
        CheckpointError: The file is damaged or not supported.
    """
    checkpoint = load_checkpoint(file)
    names = checkpoint.decoder.tensors()
    weights = {name: checkpoint.tensors.read(name).astype(np.float16) for name in names}
    given = checkpoint.config.fields.values.items()
    config = {name: value for name, value in given if value is not None}
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name, text in checkpoint.tokenizer_files.items():
        (folder / name).write_text(text, encoding="utf-8")
    text = json.dumps({**config, "torch_dtype": "float16"}, indent=1)
    (folder / "config.json").write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(exit_code(main))
