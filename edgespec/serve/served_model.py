"""A model of a server, loaded or not."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from edgespec.bundle import MANIFEST, Bundle
from edgespec.errors import EdgespecError
from edgespec.llm.images import Viewer
from edgespec.llm.instance import ModelInstance
from edgespec.llm.llm import LLM, around, inside
from edgespec.llm.load.adapter_files import AdapterFile, require_scale
from edgespec.llm.load.options import LoadOptions
from edgespec.llm.load.place import MemoryUse, find_plan, plan_memory, with_sessions
from edgespec.llm.prompts import Prompts, grammars_of
from edgespec.runtime.plan import MemoryPlan
from edgespec.runtime.text.plain import PlainEncoder
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.text.vocabulary.vocabulary import Vocabulary

if TYPE_CHECKING:
    import asyncio

    from edgespec.runtime.sampling.grammar import GrammarCompiler

_DEFAULT_TAG = "latest"
_COUNTED = 4  # times the context that a conversation whose tokens are counted may have


class ServedModel:
    """A model that clients may ask for, loaded or not.

    Its tokenizer and what grammars need are always there: no other thread goes on while they are
    made, which may take a second, and clients are told what the model can do.

    Args:
        name: its name for clients.
        bundle: its bundle.
        options: how it is loaded.
        sessions: the most texts of full length for which memory is planned, as far as there is
            room; None: as many as `options` say.
        llm: the model, if it is loaded already.

    Attributes:
        tokenizer: its tokenizer.
        adapters: the adapters that are loaded with it, whose names clients may ask for, too, and
            their scales in texts that do not say.
        modified: when its bundle was written, in seconds since 1970; its folder may go later.
        llm: the model; None while it is not loaded.
        claims: number of requests that use it.
        used: when the last of them ended.
        kept: seconds for which it stays loaded behind that; infinity: until another needs its room.
        ending: will unload it once its time is over; None: nothing will.
        resting: will let it give back what it kept of texts; None: nothing will.

    Raises:
        EdgespecError: if the tokenizer is damaged, or the options do not suit the model.
    """

    def __init__(
        self,
        name: str,
        bundle: Bundle,
        options: LoadOptions,
        sessions: int | None = None,
        llm: LLM | None = None,
    ) -> None:
        self.name = name
        self.bundle = bundle
        self.options = options
        self._sessions = sessions
        self.llm = llm
        self.claims = 0
        self.used = time.monotonic()
        self.kept = math.inf
        self.ending: asyncio.TimerHandle | None = None
        self.resting: asyncio.TimerHandle | None = None
        self.modified = (bundle.path / MANIFEST).stat().st_mtime
        self.adapters = options.adapter_files if llm is None else llm.options.adapter_files
        self.tokenizer = Tokenizer.of(bundle) if llm is None else llm.tokenizer
        self._alone = find_plan(bundle, options) if llm is None else llm.plan
        self._grammars: GrammarCompiler | None = None
        if llm is None and bundle.target.writes:
            with suppress(EdgespecError):  # who asks for a text that follows one is told
                self._grammars = grammars_of(bundle, self.tokenizer)

    @property
    def names(self) -> list[str]:
        """Its name, and those of its adapters."""
        return [self.name, *(each.name for each in self.adapters)]

    @property
    def left(self) -> float:
        """Seconds for which it stays loaded if nobody uses it."""
        return self.kept if self.claims else max(self.used + self.kept - time.monotonic(), 0.0)

    def adapter(self, name: str | None) -> AdapterFile | None:
        """Returns its adapter of a name, with or without a tag; None if that is no adapter's."""
        return named_adapter(self.adapters, name)

    def rescale(self, scales: Mapping[str, float]) -> None:
        """Sets the scales of adapters in texts that do not say; of those left out it is 0.

        Raises:
            InputError: if a scale is out of range.
        """
        for name, scale in scales.items():
            require_scale(f"the scale of adapter {name}", scale)
        self.adapters = [replace(each, scale=scales.get(each.name, 0.0)) for each in self.adapters]
        llm = self.llm
        if llm is not None:
            self._adapt(inside(llm))

    def _adapt(self, loaded: ModelInstance) -> None:
        """Gives the adapters of a model that was loaded the scales that they have now."""
        loaded.adapters = replace(loaded.adapters, files=self.adapters)

    @property
    def plan(self) -> MemoryPlan:
        """What it is loaded as, or would be if it were alone."""
        return self._alone if self.llm is None else self.llm.plan

    @property
    def counting(self) -> Prompts:
        """What makes prompts that may be some times as long as the context, loaded or not."""
        if self.llm is not None:
            return inside(self.llm).prompts.with_context(_COUNTED * self.plan.context)
        viewer = Viewer(self.bundle, self.tokenizer, threads=1)
        made = self._grammars
        grammars = (
            partial(grammars_of, self.bundle, self.tokenizer) if made is None else lambda: made
        )
        return Prompts(self.bundle, self.tokenizer, _COUNTED * self.plan.context, viewer, grammars)

    @cached_property
    def plain_encoder(self) -> PlainEncoder:
        """What makes tokens of a text without its special ones."""
        return PlainEncoder(self.tokenizer)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What each of its tokens stands for."""
        return Vocabulary(self.tokenizer)

    def load(self, stay: Sequence[MemoryUse] = ()) -> LLM:
        """Loads it beside others, and returns it.

        Raises:
            EdgespecError: as `LLM`.
        """
        options = self.options
        most = self._sessions
        if most is not None:
            options = with_sessions(self.bundle, options, most, stay)
        plan = plan_memory(self.bundle, options, stay)
        made = self._grammars
        grammars = None if made is None else lambda: made
        loaded = ModelInstance(self.bundle, options, self.tokenizer, plan, grammars)
        llm = around(loaded)
        self.llm = llm
        self._adapt(loaded)  # behind it, since scales may be set meanwhile
        return llm

    def forget(self) -> None:
        """Gives up the loaded model, and what grammars need, which is made again for the next one.

        That is 90 MB with 150 thousand tokens, and a second for the first text with a grammar.
        """
        self.llm = None
        self._grammars = None

    def fits(self, stay: Sequence[MemoryUse], go: Sequence[MemoryUse]) -> bool:
        """Whether it is what it is alone, beside some models and once others have gone.

        One that does not even fit alone needs nobody to go.
        """
        try:
            alone = find_plan(self.bundle, self.options, (), [*stay, *go])
            found = find_plan(self.bundle, self.options, stay, go)
        except EdgespecError:  # who loads it is told
            return True
        same = (found.context, found.roles) == (alone.context, alone.roles)
        return not alone.fits or (found.fits and same)


def named_adapter(files: Sequence[AdapterFile], name: str | None) -> AdapterFile | None:
    """Returns the adapter of a name, with or without a tag; None if that is no adapter's."""
    asked = tagged(name or "")
    return next((each for each in files if tagged(each.name) == asked), None)


def tagged(name: str) -> str:
    """Returns a name with its tag, which comes after the last slash."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:{_DEFAULT_TAG}"
