"""OpenVINO GenAI, on models converted by optimum-intel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from peers.base import DRAFT, LOOKUP, PLAIN, PeerError, Stopwatch, Unjudged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peers.base import Checkpoints, Loading, Request, Text

_ASSISTANT_TOKENS = 5  # as in its samples
_NGRAM = 3


class _OpenVinoGenAi:
    home = "openvino-genai"
    requirements = (
        "openvino-genai", "openvino", "optimum-intel[openvino]", "nncf", "torch==2.13.0",
    )  # fmt: skip
    build: ClassVar[Mapping[str, str]] = {}
    precision = "int4"
    settings: ClassVar[Mapping[str, str]] = {
        PLAIN: "LLMPipeline without prefix caching",
        LOOKUP: f"prompt_lookup, {_ASSISTANT_TOKENS} tokens, n-grams to {_NGRAM}",
        DRAFT: f"draft_model, {_ASSISTANT_TOKENS} tokens",
    }

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """See `Peer`."""
        # It comes along, is built for CUDA's torch, and keeps transformers from being imported
        # beside that of CPUs; a language model needs none.
        uninstall = [sys.executable, "-m", "pip", "uninstall", "--yes", "torchvision"]
        subprocess.run(uninstall, check=True, stdout=sys.stderr)
        for role, path in (("target", checkpoints.target), ("draft", checkpoints.draft)):
            if path is not None:
                self._export(path, output / role)

    def load(self, loading: Loading) -> _Decoder:
        """See `Peer`."""
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        # A prompt that was there before is not to be free; see the library's own benchmark.
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = sys.maxsize
        properties = {"INFERENCE_NUM_THREADS": loading.threads, **self._properties}
        how: dict[str, Any] = {"scheduler_config": scheduler, **properties}
        if loading.setting == LOOKUP:
            how["prompt_lookup"] = True
        if loading.setting == DRAFT:
            draft = str(loading.folder / "draft")
            how["draft_model"] = genai.draft_model(draft, "CPU", **properties)
        pipeline = genai.LLMPipeline(str(loading.folder / "target"), "CPU", **how)
        return _Decoder(pipeline, loading)

    def _export(self, checkpoint: Path, output: Path) -> None:
        command = [
            str(Path(sys.executable).with_name("optimum-cli")), "export", "openvino",
            "--model", str(checkpoint), "--task", "text-generation-with-past",
            "--weight-format", "int4",
            "--group-size-fallback", "adjust",  # or widths that 128 does not divide are an error
            str(output),
        ]  # fmt: skip
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        sys.stderr.write(done.stdout + done.stderr)
        if done.returncode:
            raise PeerError(f"optimum-cli: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")


class _Decoder(Unjudged):
    def __init__(self, pipeline: Any, loading: Loading) -> None:
        self._pipeline = pipeline
        self._loading = loading

    def make(self, request: Request) -> Text:
        """See `Decoder`."""
        import numpy as np
        import openvino
        import openvino_genai as genai

        class Streamer(genai.StreamerBase):  # type: ignore[misc]
            """Gets a token, or those of a round."""

            def write(self, tokens: int | list[int]) -> Any:
                watch.take([tokens] if isinstance(tokens, int) else tokens)
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                pass

        config = genai.GenerationConfig()
        config.max_new_tokens = request.new_tokens
        config.stop_token_ids = set(self._loading.eos_ids)
        config.do_sample = request.temperature > 0
        if config.do_sample:
            config.temperature, config.rng_seed = request.temperature, request.seed
        if self._loading.setting != PLAIN:
            config.num_assistant_tokens = _ASSISTANT_TOKENS
        if self._loading.setting == LOOKUP:
            config.max_ngram_size = _NGRAM
        ids = openvino.Tensor(np.array([request.prompt], np.int64))
        streamer = Streamer()
        watch = Stopwatch()
        self._pipeline.generate(ids, config, streamer)
        return watch.text()


PEER = _OpenVinoGenAi({})
# By default it calculates in bf16 where the CPU has it, which is faster for a prompt and can be
# slower for a token.
PEER_F32 = _OpenVinoGenAi({"INFERENCE_PRECISION_HINT": "f32"})
