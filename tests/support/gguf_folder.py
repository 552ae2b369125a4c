"""Writes the model of a GGUF file as a checkpoint's folder in fp16, for the tests of real models.

Its arguments are the file and the folder: smollm2-135m.gguf smollm2-135m
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from edgespec.models import load_checkpoint


def main(file: Path, folder: Path) -> None:
    checkpoint = load_checkpoint(file)
    weights = {
        name: checkpoint.tensors.read(name).astype(np.float16)
        for name in checkpoint.decoder.tensors()
    }
    given = checkpoint.config.fields.values.items()
    config = {name: value for name, value in given if value is not None}
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    files = {
        **checkpoint.tokenizer_files,
        "config.json": json.dumps({**config, "torch_dtype": "float16"}, indent=1),
    }
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
