"""What `edgespec bench --share` prints: a machine, its passes and speeds, as Markdown."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import edgespec
from edgespec.cli.tables import markdown_table
from edgespec.cli.waiting import waiting
from edgespec.llm.llm import LLM, inside
from edgespec.measuring.bench import PLAIN, BenchLine, BenchRequest
from edgespec.measuring.llama_cpp import LlamaModel, ServerOptions
from edgespec.measuring.passes import pass_seconds, row_bytes
from edgespec.runtime.kernels import kernel_name
from edgespec.store.making import bundle_name
from edgespec.system.bandwidth import bandwidth
from edgespec.system.environment import hardware
from edgespec.system.machine import default_threads

_READING = 1.0  # seconds in which memory is read
_PEER = "xllamacpp"


class Beside:
    """llama.cpp with a setting, which makes the texts of a benchmark in turns with edgespec.

    Args:
        file: the GGUF file.
        setting: one of `edgespec.measuring.llama_cpp.SETTINGS`.
        llm: what it is compared with.
        warm_up: the first text, which does not count.

    Attributes:
        speeds: tokens per second of each text after its first token.
        first: seconds to the first token of each text.
    """

    def __init__(self, file: Path, setting: str, llm: LLM, warm_up: BenchRequest) -> None:
        self.setting = setting
        threads = llm.options.threads or default_threads()
        self._model = LlamaModel(
            ServerOptions(str(file), None, setting, threads, llm.context_length)
        )
        self.speeds = list[float]()
        self.first = list[float]()
        self(warm_up)
        self.speeds.clear()
        self.first.clear()

    def __call__(self, request: BenchRequest) -> None:
        """Makes a text."""
        begin = time.perf_counter()
        began = list[float]()
        ((tokens),) = self._model.texts(
            [list(request.prompt)],
            request.max_new_tokens,
            request.temperature,
            request.seed,
            lambda: began.append(time.perf_counter()),
        )
        seconds = time.perf_counter() - began[0]
        if len(tokens) > 1:
            self.speeds.append((len(tokens) - 1) / seconds)
            self.first.append(began[0] - begin)


def llama_cpp(model: str | Path | None, llm: LLM, requests: Sequence[BenchRequest]) -> list[Beside]:
    """Returns llama.cpp plain and with n-grams; nothing without its wheel or a GGUF file."""
    file = None if model is None else Path(model)
    missing = file is None or file.suffix != ".gguf" or not file.is_file()
    if missing or importlib.util.find_spec(_PEER) is None:
        return []
    assert file is not None
    with waiting("llama.cpp is loaded"):
        return [Beside(file, setting, llm, requests[0]) for setting in (PLAIN, "lookup")]


def shared(
    llm: LLM, lines: Sequence[BenchLine], others: Sequence[Beside], prompts: Sequence[Path]
) -> str:
    """Returns tables of a machine, of passes, and of the speeds of all settings."""
    machine = hardware()
    threads = llm.options.threads or default_threads()
    size = row_bytes(llm.bundle)
    target = llm.bundle.target
    with waiting("passes are timed"):
        passes = pass_seconds(inside(llm).engine.target)
        least = size / bandwidth(threads, _READING)
    texts = ", ".join(path.name for path in prompts) or "the built-in prompts"
    heading = (
        f"**{bundle_name(llm.bundle)}** ({target.architecture}, {target.parameters / 1e9:.2f} B "
        f"weights, {size / 1e9:.2f} GB a token) on {machine['cpu']}, {threads} threads, "
        f"kernels for {kernel_name()}, {machine['memory_gib']} GiB, load "
        f"{machine['load_average']}, {machine['system']}; edgespec {edgespec.__version__}, {texts}"
    )
    one = passes[1]
    timed = markdown_table(
        ["rows of a pass", *map(str, passes)],
        [
            ["ms", *(round(1e3 * each, 1) for each in passes.values())],
            ["to one row", *(round(each / one, 2) for each in passes.values())],
        ],
    )
    rows: list[Sequence[object]] = [
        (
            "edgespec",
            line.name,
            line.tokens_per_second,
            round(line.mean_accepted_length, 2),
            round(line.ttft_ms),
            line.equal_to_plain,
        )
        for line in lines
    ]
    version = importlib.metadata.version(_PEER) if others else ""
    rows += [
        (
            f"llama.cpp ({_PEER} {version})",
            other.setting,
            round(median(other.speeds), 1),
            "-",
            round(1e3 * median(other.first)),
            "-",
        )
        for other in others
        if other.speeds
    ]
    header = ["program", "setting", "tokens/s", "tokens a pass", "first token, ms", "plain's text"]
    limit = f"One row takes {one / least:.2f} times as long as reading its weights from memory."
    return "\n\n".join([heading, timed, limit, markdown_table(header, rows)])
