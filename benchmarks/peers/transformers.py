"""transformers on torch: the reference that everybody has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from peers.base import DRAFT, LOOKUP, PLAIN, Stopwatch, Unjudged

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from peers.base import Checkpoints, Loading, Request, Text


class _Transformers:
    home = "transformers"
    requirements = ("transformers>=5", "torch==2.13.0", "safetensors", "numpy")
    build: ClassVar[Mapping[str, str]] = {}
    precision = "bf16"
    settings: ClassVar[Mapping[str, str]] = {
        PLAIN: "generate()",
        LOOKUP: "prompt_lookup_num_tokens=10",
        DRAFT: "assistant_model=, its defaults",
    }

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """See `Peer`: it reads the checkpoints as they are."""
        (output / "target").symlink_to(checkpoints.target.resolve())
        if checkpoints.draft is not None:
            (output / "draft").symlink_to(checkpoints.draft.resolve())

    def load(self, loading: Loading) -> _Decoder:
        """See `Peer`."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(loading.threads)

        def model(role: str) -> Any:
            # dtype="auto" keeps the few tensors that are stored in fp32, and the products mix.
            folder = loading.folder / role
            return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()

        how: dict[str, Any] = {}
        if loading.setting == LOOKUP:
            how["prompt_lookup_num_tokens"] = 10
        if loading.setting == DRAFT:
            how["assistant_model"] = model("draft")
        return _Decoder(model("target"), how, loading.eos_ids)


class _Decoder(Unjudged):
    def __init__(self, model: Any, how: dict[str, Any], eos_ids: tuple[int, ...]) -> None:
        self._model = model
        self._how = how
        self._eos_ids = list(eos_ids)

    def make(self, request: Request) -> Text:
        """See `Decoder`."""
        import torch
        from transformers.generation.streamers import BaseStreamer

        class Streamer(BaseStreamer):  # type: ignore[misc]
            """Gets the prompt first, then what is new."""

            seen_prompt = False

            def put(self, value: Any) -> None:
                if self.seen_prompt:
                    watch.take(value.reshape(-1).tolist())
                self.seen_prompt = True

            def end(self) -> None:
                pass

        torch.manual_seed(request.seed)
        ids = torch.tensor([request.prompt])
        sampling: dict[str, Any] = {"do_sample": False}
        if request.temperature:
            sampling = {
                "do_sample": True, "temperature": request.temperature, "top_k": 0, "top_p": 1.0,
            }  # fmt: skip
        watch = Stopwatch()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=request.new_tokens,
                eos_token_id=self._eos_ids,
                pad_token_id=self._eos_ids[0],
                streamer=Streamer(),
                **sampling,
                **self._how,
            )
        return watch.text()


PEER = _Transformers()
