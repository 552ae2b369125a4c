"""edgespec itself, loaded and asked like its peers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from peers.base import AUTO, DRAFT, LOOKUP, PLAIN, Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edgespec import LLM
    from edgespec.measuring.equality import Judge
    from peers.base import Checkpoints, Loading, Request

_DRAFTS = {PLAIN: "none", LOOKUP: "lookup", DRAFT: "model", AUTO: "auto"}


class _Edgespec:
    home = "edgespec"
    requirements = ()
    build: ClassVar[Mapping[str, str]] = {}
    settings: ClassVar[Mapping[str, str]] = {
        name: f"draft={draft}" for name, draft in _DRAFTS.items()
    }

    def __init__(self, precision: str) -> None:
        self.precision = precision

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """See `Peer`."""
        from edgespec.export import ExportOptions, export_bundle
        from edgespec.tuning.calibrating import TextCalibration

        export_bundle(
            checkpoints.target, output / "bundle", checkpoints.draft,
            ExportOptions(self.precision), calibration=TextCalibration(),
        )  # fmt: skip

    def load(self, loading: Loading) -> _Decoder:
        """See `Peer`."""
        from edgespec import LLM

        draft = _DRAFTS[loading.setting]
        llm = LLM(
            loading.folder / "bundle", draft=draft, threads=loading.threads,
            context=loading.context, device=loading.device,
        )  # fmt: skip
        return _Decoder(llm)


class _Decoder:
    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._judge: Judge | None = None

    def make(self, request: Request) -> Text:
        """See `Decoder`; the clock of the result counts what comes after the first token."""
        self._llm.forget()
        begin = time.monotonic()
        result = self._llm.generate(
            request.prompt,
            max_new_tokens=request.new_tokens,
            temperature=request.temperature,
            seed=request.seed,
        )
        whole = time.monotonic() - begin
        ttft = whole - result.tpot_ms * (result.new_tokens - 1) / 1e3
        return Text(tuple(result.tokens), ttft, whole, begin + ttft)

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """See `Decoder`: plain decoding may have had another engine, so this one's counts, too."""
        from edgespec.measuring.equality import Judge

        if list(expected) != list(found):
            self._llm.forget()
            expected = self._llm.generate(
                request.prompt,
                max_new_tokens=request.new_tokens,
                temperature=request.temperature,
                seed=request.seed,
                num_assistant_tokens=0,
            ).tokens
        if self._judge is None:
            self._judge = Judge(self._llm.target, self._llm.tokenizer)
        return self._judge.verdict(
            request.prompt, expected, found, request.temperature, request.seed
        )


PEER = _Edgespec("int4")
PEER_INT8 = _Edgespec("int8")
PEER_FP32 = _Edgespec("fp32")
PEER_W8A8 = _Edgespec("w8a8")
