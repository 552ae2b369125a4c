"""Choice of the pipeline: draft and verify in turn, or at the same time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from edgespec.bundle import DRAFT, TARGET, Bundle
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.costs.contention import apart, overlap_cost
from edgespec.runtime.decoding.pipelines import Overlap, Payoff, Serial
from edgespec.runtime.deployment.deployment import Loaded
from edgespec.runtime.drafters import Drafter
from edgespec.runtime.execution.runner import Runner

_log = logging.getLogger(__name__)

Pipelines = Callable[[Runner, Drafter], Serial]
"""Creates the pipeline of one text."""


def pipelines(asked: str, bundle: Bundle, loaded: Mapping[str, Loaded], threads: int) -> Pipelines:
    """Returns the factory for pipelines; `auto` overlaps if two devices take part and it pays.

    Args:
        asked: pipeline option, one of `PIPELINES`.
        bundle: bundle that was loaded.
        loaded: loaded roles by name.
        threads: number of threads per engine.

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
        cost = overlap_cost(bundle, engines, threads, lambda: (target.model, draft.model))
    except DeviceError as error:
        _log.warning("%s: drafting and verifying at once failed, so they take turns", error)
        return Serial
    return partial(Overlap, payoff=Payoff(cost.slowdown))
