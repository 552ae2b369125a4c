"""llama.cpp's server by the wheel of xllamacpp, to be compared with.

The wheel is for AVX2, without AVX-512 and VNNI. Its threads spin while they wait for each other, so
other load on the machine slows it out of all proportion. This file needs nothing but that package:
`benchmarks/peers` also runs it in an environment without edgespec.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

REQUIREMENTS = ("xllamacpp",)
SETTINGS = {
    "plain": "Server.handle_completions",
    "draft": "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE, its defaults",
    "head": "COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3, _DFLASH or _DSPARK, its defaults",
    "lookup": "COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE, its defaults",
}
"""Ways to decode, and how each is set up."""


@dataclass(frozen=True)
class ServerOptions:
    """How the server is loaded.

    Attributes:
        target: the GGUF file.
        draft: that of its draft, for the setting `draft`.
        setting: one of `SETTINGS`.
        threads: number of threads.
        context: tokens of all texts that are made at once.
        sequences: texts at once.
        head: GGUF file of its draft head, for the setting `head`.
        form: what that file holds: eagle3, dflash or dspark.
    """

    target: str
    draft: str | None
    setting: str
    threads: int
    context: int
    sequences: int = 1
    head: str | None = None
    form: str | None = None


class LlamaModel:
    """A loaded server, within this process.

    Attributes:
        accepted: how many drafted tokens are in the last texts.

    Raises:
        ImportError: xllamacpp is not installed.
    """

    accepted = 0

    def __init__(self, loading: ServerOptions) -> None:
        import xllamacpp

        kinds = xllamacpp.common_speculative_type
        how = xllamacpp.CommonParams()
        how.model.path = loading.target
        how.n_ctx = loading.context
        how.n_parallel = loading.sequences
        how.kv_unified = True
        how.verbosity = -1
        how.cpuparams.n_threads = how.cpuparams_batch.n_threads = loading.threads
        if loading.setting == "lookup":
            how.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        drafting = {"draft": ("simple", loading.draft), "head": (loading.form, loading.head)}
        if loading.setting in drafting:
            draft = how.speculative.draft
            kind, draft.mparams.path = drafting[loading.setting]
            how.speculative.types = [
                getattr(kinds, f"COMMON_SPECULATIVE_TYPE_DRAFT_{kind}".upper())
            ]
            draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = loading.threads
        self._server = xllamacpp.Server(how)

    def texts(
        self,
        prompts: Sequence[list[int]],
        new_tokens: int,
        temperature: float,
        seed: int,
        began: Callable[[], None],
        known: int = 0,
    ) -> list[list[int]]:
        """Makes the texts of prompts at once, without what earlier ones computed.

        Args:
            prompts: token ids.
            new_tokens: the most of each text.
            temperature: 0 for the likeliest tokens.
            seed: of each text's sampling.
            began: called when tokens of a text come for the first time.
            known: tokens of the prompt that the text before began with, and that are not read anew.
        """
        options = {
            "n_predict": new_tokens,
            "seed": seed,
            "temperature": temperature,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "cache_prompt": known > 0,
            "stream": True,
            "verbose": True,
            "return_tokens": True,
        }

        def text(prompt: list[int]) -> tuple[list[int], int]:
            tokens = list[int]()
            accepted = 0

            def take(part: dict[str, Any]) -> None:
                nonlocal accepted
                if "error" in part:
                    raise RuntimeError(part["error"])
                new = part["__verbose"]["tokens"]
                if new and not tokens:
                    began()
                tokens.extend(new)
                accepted = part.get("timings", {}).get("draft_n_accepted", 0)  # of all, at the end

            self._server.handle_completions({"prompt": prompt, **options}, take)
            return tokens, accepted

        with ThreadPoolExecutor(len(prompts)) as threads:
            texts = list(threads.map(text, prompts))
        self.accepted = sum(accepted for _, accepted in texts)
        return [tokens for tokens, _ in texts]
