"""The models of a server: which are loaded, who uses them, and who waits for one."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from edgespec.errors import EdgespecError, InputError, MemoryLimitError
from edgespec.llm.llm import LLM, inside
from edgespec.llm.load.place import MemoryUse
from edgespec.serve.refusals import RequestError, internal_error, shorten_value
from edgespec.serve.served_model import ServedModel, tagged
from edgespec.system.machine import release_memory

REST = 1800.0
"""Seconds behind which a model that nobody uses gives back what it kept of texts."""

_LONGEST_NAME = 256  # characters of a name that is not known; some answers repeat it in each line
_NAMED = 5  # models that a refusal names
_log = logging.getLogger(__name__)


@dataclass(eq=False)
class Claim:
    """A request's claim to a model, which stays loaded until the claim ends.

    Attributes:
        model: the model.
        loaded: becomes the loaded model; a `RequestError` if it cannot be loaded.
    """

    model: ServedModel
    loaded: asyncio.Future[LLM]
    ended: bool = False


class Models:
    """The models of a server, loaded when they are asked for.

    Who asks first is served first. Where there is no room beside the others, those that were not
    used for longest are unloaded, and while all are in use, all who come later wait, too: they
    could keep them in use for ever. While a model is being loaded, those that are loaded go on,
    and once it is there, all who wait for it do.
    All methods belong to one event loop, but `close`.

    Args:
        served: the models. The first one answers who names none.
        most: the most that are loaded at once; None: as many as memory has room for.
        any_name: whether the first one also answers who asks for a name that is not known.
        kept: seconds for which a model stays loaded that nobody uses.
        rest: seconds behind which it gives back what it kept of texts.
    """

    def __init__(
        self,
        served: Sequence[ServedModel],
        most: int | None = None,
        any_name: bool = False,
        kept: float = math.inf,
        rest: float = REST,
    ) -> None:
        self.served = served
        for each in served:
            each.kept = kept
        self._kept = kept
        self._rest = rest
        self._most = most or len(served)
        self._any_name = any_name
        self._names = {tagged(name): each for each in served for name in each.names}
        self._waiting: list[Claim] = []  # the first one longest
        self._loading: tuple[ServedModel, asyncio.Task[None]] | None = None
        self._thread = ThreadPoolExecutor(1, "edgespec-load")
        self._stopped = False

    def find(self, name: str | None) -> ServedModel:
        """Returns the model of a name, or of an adapter's; both may have a tag, as Ollama's do.

        Raises:
            RequestError: if there is none.
        """
        found = self.served[0] if name is None else self._names.get(tagged(name))
        if found is None and self._any_name and len(name or "") <= _LONGEST_NAME:
            return self.served[0]
        if found is None:
            known = [name for each in self.served for name in each.names]
            names = " or ".join(map(repr, known[:_NAMED]))
            raise RequestError(
                404,
                f"model {shorten_value(name)} not found: use {names}, or start the server with "
                "--any-model to have any name answered",
                "model_not_found",
                "model",
            )
        return found

    def status(self, model: ServedModel) -> str:
        """Returns whether a model is loaded, loading or unloaded."""
        if model.llm is not None:
            return "loaded"
        return "loading" if self._loading and self._loading[0] is model else "unloaded"

    @property
    def busy(self) -> bool:
        """Whether a model is being loaded."""
        return self._loading is not None

    @contextmanager
    def claim(self, model: ServedModel) -> Iterator[Claim]:
        """Claims a model until the end of the block, or until `end`."""
        claim = Claim(model, asyncio.get_running_loop().create_future())
        self._waiting.append(claim)
        self._go_on()
        try:
            yield claim
        finally:
            self.end(claim)

    def end(self, claim: Claim) -> None:
        """Ends a claim, whether its model was loaded or not."""
        if claim.ended:
            return
        claim.ended = True
        if claim in self._waiting:
            self._waiting.remove(claim)
            claim.loaded.cancel()
        elif claim.loaded.exception() is None:
            claim.model.claims -= 1
            claim.model.used = time.monotonic()
            self.expect_end(claim.model)
            self._expect_rest(claim.model)
        self._go_on()

    def keep(self, model: ServedModel, seconds: float | None) -> None:
        """Lets a model stay loaded so long behind its requests; None: as the server was told."""
        model.kept = self._kept if seconds is None else seconds

    def expect_end(self, model: ServedModel) -> None:
        """Unloads a model once its time is over, unless somebody uses it until then."""
        if model.ending is not None:
            model.ending.cancel()
        model.ending = None
        if model.llm is None or model.claims or math.isinf(model.kept):
            return
        if model.left:
            loop = asyncio.get_running_loop()
            model.ending = loop.call_later(model.left, self.expect_end, model)
            return
        ending = [model.llm]
        model.forget()
        _log.info("%s is unloaded, since nobody has used it", model.name)
        if not self._stopped:
            self._thread.submit(_unload, ending)

    def _expect_rest(self, model: ServedModel) -> None:
        """Lets a model give back what it kept of texts, unless somebody uses it meanwhile."""
        if model.resting is not None:
            model.resting.cancel()
        model.resting = None
        if model.llm is not None and not model.claims:
            loop = asyncio.get_running_loop()
            model.resting = loop.call_later(self._rest, self._shrink, model)

    def _shrink(self, model: ServedModel) -> None:
        if model.llm is not None and not model.claims and not self._stopped:
            self._thread.submit(_shrink, model.llm)

    def stop(self) -> None:
        """Loads no more models."""
        self._stopped = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Closes the loaded models."""
        for model in self.served:
            if model.llm is not None:
                _end(model.llm)

    def _go_on(self) -> None:
        """Lets those go on whose models are loaded, and loads what is waited for."""
        for claim in tuple(self._waiting):
            model = claim.model
            if claim.loaded.cancelled():
                continue
            if model.llm is not None:
                self._settle(claim)
            elif self._loading is None and not self._stopped:
                going = self._giving_way(model)
                if going is None:
                    return
                ending = [each.llm for each in going if each.llm is not None]
                for each in going:
                    each.llm = None
                self._loading = model, asyncio.create_task(self._load(model, ending))

    def _giving_way(self, model: ServedModel) -> list[ServedModel] | None:
        """Returns which models are to be unloaded for another; None: one of those in use."""
        loaded = [each for each in self.served if each.llm is not None]
        idle = sorted((each for each in loaded if not each.claims), key=lambda each: each.used)
        for number in range(len(idle) + 1):
            going = idle[:number]
            staying = [each for each in loaded if each not in going]
            if len(staying) >= self._most:
                continue
            if not staying or model.fits(_taken(staying), _taken(going)):
                return going
        return None

    async def _load(self, model: ServedModel, ending: list[LLM]) -> None:
        """Closes models and loads another one, for those who wait for it."""
        stay = _taken(self.served)

        def load() -> None:
            _unload(ending)
            model.load(stay)

        refusal: RequestError | None = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, load)
        except Exception as error:
            _log.error("%s cannot be loaded: %s", model.name, error, exc_info=error)
            refusal = _refusal(model, error)
        self._loading = None
        for claim in tuple(self._waiting):  # all at once, so that it is not loaded for each anew
            if claim.model is model and not claim.loaded.cancelled():
                self._settle(claim, refusal)
        self._go_on()

    def _settle(self, claim: Claim, refusal: RequestError | None = None) -> None:
        """Lets a request go on with its model, or ends it."""
        self._waiting.remove(claim)
        if claim.model.llm is not None:
            claim.model.claims += 1
            claim.loaded.set_result(claim.model.llm)
        elif refusal is not None:
            claim.loaded.set_exception(RequestError(refusal.status, str(refusal), refusal.code))


def _end(llm: LLM) -> None:
    """Closes a model, and keeps what it has learned if that is wanted."""
    with llm:
        if llm.options.draft_memory is not None:
            llm.save_draft_memory(llm.options.draft_memory)


def _unload(ending: list[LLM]) -> None:
    """Closes models that nobody else has, and gives back their memory."""
    while ending:
        try:
            _end(ending.pop())
        except EdgespecError as error:  # who waits for another model has no part in it
            _log.error("%s", error)
    release_memory()


def _shrink(llm: LLM) -> None:
    """Gives back memory that a model does not need while nobody uses it."""
    with suppress(InputError):  # it was closed meanwhile
        inside(llm).shrink()
    release_memory()


def _taken(models: Sequence[ServedModel]) -> list[MemoryUse]:
    return [inside(each.llm).memory_use for each in models if each.llm is not None]


def _refusal(model: ServedModel, error: Exception) -> RequestError:
    """Returns the error for requests whose model cannot be loaded, without the bundle's path."""
    if not isinstance(error, EdgespecError):
        return internal_error()
    reason = str(error).replace(f"{model.bundle.path.parent}{os.sep}", "")
    status = 503 if isinstance(error, MemoryLimitError) else 500
    return RequestError(
        status, f"model {model.name!r} cannot be loaded: {reason}", "model_not_loaded"
    )
