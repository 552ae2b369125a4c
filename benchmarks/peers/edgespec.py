"""edgespec itself, loaded and asked like its peers."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from peers.base import AUTO, DRAFT, LOOKUP, PLAIN, GgufFiles, Stopwatch, Text, Unjudged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from edgespec import LLM
    from edgespec.api.llm import LLM
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


class _Native(GgufFiles):
    """The native graphs of the files that peers read, with the files' own numbers."""

    home = "edgespec-native"
    requirements = ()
    build: ClassVar[Mapping[str, str]] = {}
    settings = _Edgespec.settings

    def convert(self, checkpoints: Checkpoints, output: Path) -> None:
        """See `Peer`."""
        from edgespec.export import export_bundle

        super().convert(checkpoints, output)
        draft = None if checkpoints.draft is None else output / "draft.gguf"
        export_bundle(output / "target.gguf", output / "bundle", draft)

    def load(self, loading: Loading) -> _NativeDecoder:
        """See `Peer`."""
        from edgespec import bundle as bundles
        from edgespec.api.llm import LLM
        from edgespec.api.loading import LoadOptions

        bundle, draft = bundles.load(loading.folder / "bundle"), _DRAFTS[loading.setting]
        options = LoadOptions(draft=draft, threads=loading.threads, context=loading.context)
        return _NativeDecoder(LLM(bundle, options))


class _NativeDecoder(Unjudged):
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
PEER_NATIVE = _Native()
PEER_INT8 = _Edgespec("int8")
PEER_FP32 = _Edgespec("fp32")
