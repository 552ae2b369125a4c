"""ONNX Runtime GenAI, on models made by its own builder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from peers.base import DRAFT, LOOKUP, PLAIN, PeerError, Stopwatch, Unjudged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peers.base import Checkpoints, Loading, Request, Text

_CONFIG = "genai_config.json"
_OPTIONS: dict[str, dict[str, Any]] = {  # those of its documentation
    PLAIN: {},
    LOOKUP: {"ngram_size": 4, "max_draft_tokens": 8, "ngram_chained_lookup": True,
             "min_adaptive_k": 2},
    DRAFT: {"max_draft_tokens": 4},
}  # fmt: skip


class _OnnxRuntimeGenAi:
    home = "onnxruntime-genai"
    requirements = ("onnxruntime-genai", "onnxruntime", "onnx-ir", "transformers", "torch==2.13.0")
    build: ClassVar[Mapping[str, str]] = {}
    precision = "int4"
    settings: ClassVar[Mapping[str, str]] = {
        PLAIN: "Generator",
        LOOKUP: "n-gram decoding, adaptive width",
        DRAFT: "model.draft, 4 tokens",
    }

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """See `Peer`."""
        for role, path in (("target", checkpoints.target), ("draft", checkpoints.draft)):
            if path is not None:
                self._build(path, output / role)

    def load(self, loading: Loading) -> _Decoder:
        """See `Peer`."""
        import onnxruntime_genai as genai

        options = _OPTIONS[loading.setting]
        if options and not hasattr(genai.GeneratorParams, "set_speculative_options"):
            version = getattr(genai, "__version__", "this version")
            raise PeerError(f"onnxruntime-genai {version} has no speculative decoding")
        with tempfile.TemporaryDirectory(dir=loading.folder) as folder:
            compose(loading, Path(folder))
            model = genai.Model(folder)
        return _Decoder(model, options)

    def _build(self, checkpoint: Path, output: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            command = [
                sys.executable, "-P", "-m", "onnxruntime_genai.models.builder",
                "-i", str(checkpoint), "-o", str(output), "-p", "int4", "-e", "cpu", "-c", scratch,
            ]  # fmt: skip
            done = subprocess.run(command, check=False, capture_output=True, text=True)
        sys.stderr.write(done.stdout + done.stderr)
        if done.returncode:
            raise PeerError(f"builder: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")


def compose(loading: Loading, folder: Path) -> None:
    """A folder for a setting: the target's files but the models, which are linked.

    The library takes threads and the draft from the configuration alone, and no model from outside
    the folder that it is in.
    """
    target, draft = loading.folder / "target", loading.folder / "draft"
    config = json.loads((target / _CONFIG).read_text(encoding="utf-8"))
    model = config["model"]
    _place(model["decoder"], target, folder, loading.threads)
    if loading.setting == DRAFT:
        drafting = json.loads((draft / _CONFIG).read_text(encoding="utf-8"))["model"]["decoder"]
        _place(drafting, draft, folder, loading.threads)
        model["draft"] = drafting
        config["speculative"] = {"max_draft_tokens": _OPTIONS[DRAFT]["max_draft_tokens"]}
    if loading.setting != PLAIN:  # rejected tokens leave the cache, which a shared buffer forbids
        config["search"]["past_present_share_buffer"] = False
    (folder / _CONFIG).write_text(json.dumps(config), encoding="utf-8")
    for file in target.iterdir():
        if file.name != _CONFIG and ".onnx" not in file.name:
            shutil.copyfile(file, folder / file.name)


def _place(decoder: dict[str, Any], source: Path, folder: Path, threads: int) -> None:
    (folder / source.name).symlink_to(source.resolve())
    decoder["filename"] = f"{source.name}/{decoder['filename']}"
    decoder.setdefault("session_options", {})["intra_op_num_threads"] = threads


class _Decoder(Unjudged):
    def __init__(self, model: Any, options: dict[str, Any]) -> None:
        self._model = model
        self._options = options

    def make(self, request: Request) -> Text:
        """See `Decoder`."""
        import numpy as np
        import onnxruntime_genai as genai

        watch = Stopwatch()
        params = genai.GeneratorParams(self._model)
        search: dict[str, Any] = {"max_length": len(request.prompt) + request.new_tokens}
        if request.temperature:
            search |= {"do_sample": True, "temperature": request.temperature, "top_k": 0,
                       "top_p": 1.0, "random_seed": request.seed}  # fmt: skip
        else:
            search["do_sample"] = False
        params.set_search_options(**search)
        if self._options:
            params.set_speculative_options(**self._options)
        generator = genai.Generator(self._model, params)
        generator.append_tokens(np.array(request.prompt, np.int32))
        while not generator.is_done():
            generator.generate_next_token()
            watch.take(generator.get_next_tokens())
        return watch.text()


PEER = _OnnxRuntimeGenAi()
