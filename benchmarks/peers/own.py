"""edgespec itself, loaded and asked as its peers are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from edgespec import Result
    from peers import Loading

REQUIREMENTS = ()
SETTINGS = {
    "plain": "draft=none",
    "auto": "draft=auto",
    "head": "draft=auto, with the head in the draft's place",
    "head-alone": "draft=head",
    "draft": "draft=model",
    "lookup": "lookup",
}
_SOURCES = {
    "plain": "none",
    "auto": "auto",
    "head": "auto",
    "head-alone": "head",
    "draft": "model",
    "lookup": "lookup",
}


class Model:
    """A GGUF file's own numbers, with its draft's or a head.

    Attributes:
        accepted: see `peers`.
    """

    accepted = 0

    def __init__(self, loading: Loading) -> None:
        from edgespec import LLM

        self._source = _SOURCES[loading.setting]
        drafter = loading.head or loading.draft
        alone = self._source in ("none", "lookup")
        draft = self._source if alone or drafter is None else drafter
        self._llm = LLM(
            loading.target, draft=draft, threads=loading.threads, context=loading.context
        )
        self._llm.warm_up()

    def texts(
        self,
        prompts: Sequence[list[int]],
        new_tokens: int,
        temperature: float,
        seed: int,
        began: Callable[[], None],
        known: int = 0,
    ) -> list[list[int]]:
        """See `peers`."""
        options: dict[str, Any] = {
            "max_new_tokens": new_tokens,
            "temperature": temperature,
            "seed": seed,
        }
        if not known:
            self._llm.forget()

        def text(prompt: list[int]) -> Result:
            stream = self._llm.stream(prompt, draft_source=self._source, **options)
            told = False
            for _ in stream:
                if not told:
                    began()
                    told = True
            return stream.result

        with ThreadPoolExecutor(len(prompts)) as threads:
            results = list(threads.map(text, prompts))
        self.accepted = sum(result.accepted for result in results)
        return [result.tokens for result in results]
