"""ONNX Runtime GenAI, on models that its own builder makes of checkpoints in int4."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from peers import Loading

# Of torch the version whose wheel is for CPUs alone in some mirrors; the builder needs one.
REQUIREMENTS = (
    "onnxruntime-genai", "onnxruntime", "onnx-ir", "onnx", "transformers", "torch==2.13.0",
)  # fmt: skip
SETTINGS = {
    "plain": "Generator",
    "draft": "model.draft, 4 tokens",
    "lookup": "n-gram decoding, adaptive width",
}
_OPTIONS: dict[str, dict[str, Any]] = {  # those of its documentation
    "plain": {},
    "draft": {"max_draft_tokens": 4},
    "lookup": {"ngram_size": 4, "max_draft_tokens": 8, "ngram_chained_lookup": True,
               "min_adaptive_k": 2},
}  # fmt: skip
_CONFIG = "genai_config.json"


class Model:
    """A model. It takes threads and the draft from its folder's configuration alone."""

    def __init__(self, loading: Loading) -> None:
        import onnxruntime_genai as genai

        self._options = _OPTIONS[loading.setting]
        folders = [_built(loading.checkpoint, loading.folder)]
        if loading.setting == "draft":
            folders.append(_built(loading.draft_checkpoint, loading.folder))
        with tempfile.TemporaryDirectory(dir=loading.folder) as folder:
            _compose(folders, Path(folder), loading)
            self._model = genai.Model(folder)

    def texts(
        self,
        prompts: Sequence[list[int]],
        new_tokens: int,
        temperature: float,
        seed: int,
        began: Callable[[], None],
        known: int = 0,
    ) -> list[list[int]]:
        """See `peers`. Prompts of several texts have one length."""
        if known:
            raise ValueError("it keeps nothing of an earlier turn")
        import numpy as np
        import onnxruntime_genai as genai

        length = len(prompts[0])
        search: dict[str, Any] = {
            "max_length": length + new_tokens,
            "batch_size": len(prompts),
            "do_sample": False,
        }
        if temperature:
            search |= {
                "do_sample": True,
                "temperature": temperature,
                "top_k": 0,
                "top_p": 1.0,
                "random_seed": seed,
            }
        params = genai.GeneratorParams(self._model)
        params.set_search_options(**search)
        if self._options:
            params.set_speculative_options(**self._options)
        generator = genai.Generator(self._model, params)
        generator.append_tokens(np.array(prompts, np.int32))
        told = False
        while not generator.is_done():
            generator.generate_next_token()
            if not told:
                began()
                told = True
        return [list(generator.get_sequence(row)[length:]) for row in range(len(prompts))]


def _built(checkpoint: str | None, folder: str) -> Path:
    """Returns the folder of the builder's model of a checkpoint, which is made once."""
    if checkpoint is None:
        raise ValueError("it reads no GGUF file: give --checkpoint, and --draft-checkpoint")
    place = Path(folder) / f"{Path(checkpoint).name}-int4"
    if not place.exists():
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "made"
            command = [
                sys.executable,
                "-P",
                "-m",
                "onnxruntime_genai.models.builder",
                "-i",
                checkpoint,
                "-o",
                str(made),
                "-p",
                "int4",
                "-e",
                "cpu",
                "-c",
                scratch,
            ]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            made.rename(place)
    return place


def _compose(models: Sequence[Path], folder: Path, loading: Loading) -> None:
    """Makes a folder for a setting: the target's files, but links to the models.

    No model may lie outside of the folder that it is named in.
    """
    parts = []
    for role, source in zip(("target", "draft"), models, strict=False):
        (folder / role).symlink_to(source.resolve())
        config = json.loads((source / _CONFIG).read_text(encoding="utf-8"))
        decoder = config["model"]["decoder"]
        decoder["filename"] = f"{role}/{decoder['filename']}"
        decoder.setdefault("session_options", {})["intra_op_num_threads"] = loading.threads
        parts.append((config, decoder))
    config = parts[0][0]
    if len(parts) > 1:
        config["model"]["draft"] = parts[1][1]
        config["speculative"] = {"max_draft_tokens": _OPTIONS["draft"]["max_draft_tokens"]}
    if loading.setting != "plain":  # rejected tokens leave the cache, which a shared buffer forbids
        config["search"]["past_present_share_buffer"] = False
    (folder / _CONFIG).write_text(json.dumps(config), encoding="utf-8")
    for file in models[0].iterdir():
        if file.name != _CONFIG and ".onnx" not in file.name:
            shutil.copyfile(file, folder / file.name)
