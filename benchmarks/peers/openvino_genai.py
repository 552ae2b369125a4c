"""OpenVINO GenAI, on the GGUF file, which it makes a model of its own of, once.

It does not read all formats; matrices in others, as Q4_K_M has where rows are no multiple of 256,
are given to it in Q4_1.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from peers import Loading

REQUIREMENTS = ("openvino-genai", "gguf")
_READ = ("F32", "F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")  # of formats of GGUF files
_INSTEAD = "Q4_1"  # of others
_DRAFTED, _NGRAM = 5, 3  # as in its samples
SETTINGS = {
    "plain": "LLMPipeline without prefix caching",
    "draft": f"draft_model, {_DRAFTED} tokens",
    "head": f"draft_model in EAGLE-3 mode, {_DRAFTED} tokens, or in DFlash mode, a block",
    "lookup": f"prompt_lookup, {_DRAFTED} tokens, n-grams to {_NGRAM}",
}


class Model:
    """A pipeline. By default it computes in bf16 where the CPU has it, and keeps keys in 8 bits.

    Attributes:
        accepted: see `peers`.
    """

    accepted: int | None = None

    def __init__(self, loading: Loading) -> None:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        # A prompt that was there before is not to be free; see the library's own benchmark.
        scheduler.enable_prefix_caching = loading.keeps
        scheduler.max_num_batched_tokens = sys.maxsize
        threads = {"INFERENCE_NUM_THREADS": loading.threads}
        how: dict[str, Any] = {"scheduler_config": scheduler, **threads}
        if loading.setting == "lookup":
            how["prompt_lookup"] = True
        target = _converted(loading.target, loading.folder)
        draft = None
        self._drafted = _DRAFTED
        if loading.setting == "draft":
            draft = _converted(loading.draft, loading.folder)
        elif loading.setting == "head":
            target, draft, self._drafted = _with_head(target, loading)
        if draft is not None:
            how["draft_model"] = genai.draft_model(draft, "CPU", **threads)
        self._pipeline = genai.LLMPipeline(target, "CPU", **how)
        self._setting = loading.setting

    def texts(
        self,
        prompts: Sequence[list[int]],
        new_tokens: int,
        temperature: float,
        seed: int,
        began: Callable[[], None],
        known: int = 0,
    ) -> list[list[int]]:
        """See `peers`. Prompts of several texts have one length; when they begin it can't tell.

        It finds what is `known` by itself.
        """
        import numpy as np
        import openvino
        import openvino_genai as genai

        class Streamer(genai.StreamerBase):  # type: ignore[misc]
            """Gets a token, or those of a round."""

            told = False

            def write(self, tokens: int | list[int]) -> Any:
                if not self.told:
                    began()
                    self.told = True
                return genai.StreamingStatus.RUNNING

            def end(self) -> None:
                pass

        config = self._pipeline.get_generation_config()
        config.max_new_tokens = new_tokens
        config.do_sample = temperature > 0
        if temperature:
            config.temperature = temperature
            config.rng_seed = seed
            config.top_k = sys.maxsize
            config.top_p = 1.0
        if self._setting != "plain":
            config.num_assistant_tokens = self._drafted
        if self._setting == "lookup":
            config.max_ngram_size = _NGRAM
        ids = np.array(prompts, np.int64)
        asked = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        streamer = [Streamer()] if len(prompts) == 1 else []
        results = self._pipeline.generate(asked, config, *streamer)
        metrics = results.extended_perf_metrics
        self.accepted = metrics and metrics.get_num_accepted_tokens()
        tokens: list[list[int]] = results.tokens
        return tokens


def _converted(file: str | None, folder: str) -> str:
    """Returns the folder of the library's own model of a GGUF file."""
    import openvino_genai as genai

    if file is None:
        raise ValueError("there is no draft: give --draft")
    place = Path(folder) / Path(file).stem
    if not (place / "openvino_detokenizer.xml").exists():  # what it writes last
        place.mkdir(parents=True, exist_ok=True)
        readable = place / "model.gguf"
        readable.unlink(missing_ok=True)
        _make_readable(Path(file), readable)
        genai.LLMPipeline(str(readable), "CPU", enable_save_ov_model=True)
    return str(place)


def _with_head(target: str, loading: Loading) -> tuple[str, str, int]:
    """Returns folders of the target with other names and of the head's model, and tokens a draft.

    Raises:
        ValueError: The library does not draft with such a head, or not in this way.
    """
    from peers.openvino_head import DFLASH, block_of, write_openvino_head, write_openvino_target

    assert loading.head is not None, "else the setting is not asked for"
    assert loading.form is not None, "a file has one"
    blocks = loading.form == DFLASH
    if blocks and (loading.keeps or loading.sequences > 1):
        raise ValueError(
            f"{DFLASH}: OpenVINO GenAI drafts blocks for one text at a time, of which it has read "
            "nothing before: leave several and second out by --tests"
        )
    plain, file = Path(target), Path(loading.head)
    named, drafting = plain.with_name(f"{plain.name}-named"), plain.with_name(file.stem)
    for folder, write in (
        (named, partial(write_openvino_target, plain)),
        (drafting, partial(write_openvino_head, file, loading.form, plain)),
    ):
        if not folder.exists():
            begun = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(begun, ignore_errors=True)
            write(begun)
            begun.rename(folder)
    return str(named), str(drafting), block_of(drafting) if blocks else _DRAFTED


def _make_readable(file: Path, output: Path) -> None:
    """Links to a file, or writes it with other formats in the place of those that aren't read."""
    import gguf

    from peers.gguf_copy import rewrite

    reader = gguf.GGUFReader(file)

    def made(tensor: Any) -> tuple[Any, Any]:
        if tensor.tensor_type.name in _READ:
            return tensor.data, tensor.tensor_type
        kind = gguf.GGMLQuantizationType[_INSTEAD]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return gguf.quants.quantize(values, kind), kind

    if all(tensor.tensor_type.name in _READ for tensor in reader.tensors):
        output.symlink_to(file.resolve())
    else:
        rewrite(reader, output, made)
