"""edgespec itself, loaded and asked like its peers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from peers.base import AUTO, DRAFT, LOOKUP, PLAIN, GgufFiles, Stopwatch, Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edgespec import LLM
    from peers.base import Checkpoints, Loading, Request

_DRAFTS = {PLAIN: "none", LOOKUP: "lookup", DRAFT: "model", AUTO: "auto"}


class _Edgespec:
    """A bundle that edgespec makes of the checkpoints."""

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


class _Gguf(_Edgespec):
    """The files that other peers read, with the files' own numbers."""

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """See `Peer`."""
        from edgespec.export import export_bundle

        GgufFiles().convert(checkpoints, output)
        draft = None if checkpoints.draft is None else output / "draft.gguf"
        export_bundle(output / "target.gguf", output / "bundle", draft)


class _Decoder:
    def __init__(self, llm: LLM) -> None:
        self._llm = llm

    def make(self, request: Request) -> Text:
        """See `Decoder`."""
        self._llm.forget()
        watch = Stopwatch()
        stream = self._llm.stream(
            request.prompt,
            max_new_tokens=request.new_tokens,
            temperature=request.temperature,
            seed=request.seed,
        )
        made = 0
        for _ in stream:
            watch.take(range(stream.tokens - made))
            made = stream.tokens
        watch.take(range(stream.tokens - made))
        return replace(watch.text(), tokens=tuple(stream.result.tokens))

    def verdict(self, request: Request, expected: Sequence[int], found: Sequence[int]) -> str:
        """See `Decoder`."""
        from edgespec.measuring.bench import Request as Asked
        from edgespec.measuring.bench import verdict

        asked = Asked(request.prompt, request.new_tokens, request.temperature, request.seed)
        return verdict(self._llm, asked, expected, found)


PEER = _Edgespec("int4")
PEER_INT8 = _Edgespec("int8")
PEER_FP32 = _Edgespec("fp32")
PEER_GGUF = _Gguf("gguf")
