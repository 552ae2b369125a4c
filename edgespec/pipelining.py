"""The pipeline that texts of a loaded bundle go through."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import DeviceError, InputError
from edgespec.runtime import profiles
from edgespec.runtime.corun import slowdown
from edgespec.runtime.drafters import Drafter
from edgespec.runtime.ending import UNDERWAY
from edgespec.runtime.engines import Engines
from edgespec.runtime.model import Model
from edgespec.runtime.pipelines import Overlap, Payoff, Serial
from edgespec.runtime.profiles import Pairing
from edgespec.runtime.runner import Runner
from edgespec.runtime.selection import Loaded

_log = logging.getLogger(__name__)

Pipelines = Callable[[Runner, Drafter], Serial]
"""Makes the pipeline of one text."""


def pipelines(asked: str, bundle: Bundle, loaded: Mapping[str, Loaded], threads: int) -> Pipelines:
    """What was asked for; `auto`: overlap where two devices take part and it pays.

    Args:
        asked: one of `PIPELINES`.
        bundle: what was loaded.
        loaded: its roles.
        threads: for each engine's operators.

    Raises:
        InputError: if overlap is asked for and there is no draft model.
    """
    if asked == "overlap":
        if DRAFT not in loaded:
            raise InputError(
                f"pipeline is 'overlap', and {bundle.path} has no draft model in use: "
                "export it with --draft and draft with model or auto, or use another pipeline"
            )
        return Overlap
    if asked == "serial" or DRAFT not in loaded:
        return Serial
    target, draft = loaded[TARGET], loaded[DRAFT]
    if not apart(*((each.name for each in role.engines) for role in (target, draft))):
        return Serial
    engines = (*target.engines, *draft.engines)
    try:
        pairing = paired(bundle, engines, threads, lambda: (target.model, draft.model))
    except DeviceError as error:
        _log.warning("%s: drafts wait for the target, since both at once failed", error)
        return Serial
    return partial(Overlap, payoff=Payoff(pairing.slowdown))


def apart(target: Iterable[str], draft: Iterable[str]) -> bool:
    """Whether engines of these names compute on different processors, and so may work at once."""
    return not _processors(target) & _processors(draft)


def paired(
    bundle: Bundle, engines: Engines, threads: int, models: Callable[[], tuple[Model, Model]]
) -> Pairing:
    """What running a target and its draft model at once costs: recalled, or measured now.

    Args:
        bundle: whose they are.
        engines: the target's, and then the draft's.
        threads: for each engine's operators.
        models: gives both; asked only where they have to be measured.

    Raises:
        DeviceError: if a device fails while it is measured.
    """
    pairing = profiles.recall_pairing(bundle, engines, threads)
    if pairing is None:
        with UNDERWAY:
            pairing = Pairing(slowdown(*models()))
        profiles.remember_pairing(bundle, engines, threads, pairing)
    _log.info("the target's passes take %.2f times as long beside drafts", pairing.slowdown)
    return pairing


def _processors(engines: Iterable[str]) -> set[str]:
    """What computes: all engines on the CPU share it."""
    bare = (name.partition("#")[0] for name in engines)
    return {"cpu" if name.endswith((":cpu", ":emulated")) else name for name in bare}
