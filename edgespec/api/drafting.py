"""Choice of the drafter for each text, from the draft sources that a bundle offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgespec.bundle import DRAFT, TARGET, Bundle, SkipScore, SkipSet
from edgespec.errors import BundleError
from edgespec.runtime.costs import profiles
from edgespec.runtime.curve import Curve
from edgespec.runtime.deployment.deployment import Loaded
from edgespec.runtime.deployment.options import DRAFTS, MODEL_DRAFTS, PLANNED_DRAFTS
from edgespec.runtime.deployment.resolve import loaded_draft
from edgespec.runtime.drafters import (
    CallingDrafter,
    Drafter,
    DrafterState,
    GrammarDrafter,
    HeadCalls,
    LookupDrafter,
    ModelCalls,
    ModelDrafter,
    NoDrafter,
    ParallelDrafter,
    PredictedDrafter,
    Prediction,
    PredictionDrafter,
    RecodedCalls,
    RecodedDrafter,
    RecyclingDrafter,
    SharedCalls,
    SkipCalls,
    drafter_state,
    window,
)
from edgespec.runtime.execution.head_runner import HeadRunner
from edgespec.runtime.execution.paths import StagePath
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.planning import (
    PlannedDrafter,
    PricedModel,
    PricedParallel,
    PricedRetriever,
    PricedSource,
)
from edgespec.runtime.text.vocabulary_map import VocabularyMap

if TYPE_CHECKING:
    from edgespec.runtime.sampling.constraint import Constraint

_Calls = HeadCalls | ModelCalls | RecodedCalls | SharedCalls

# Rounds of a text in which each skip set is tried. A set whose estimate for such text did not beat
# plain decoding when the bundle was made gets none, and is only probed.
_TRIAL_ROUNDS = 2


class Drafting:
    """Creates the drafters of a loaded bundle.

    Args:
        draft: draft source, one of `DRAFTS`.
        bundle: bundle that was loaded.
        loaded: loaded roles by name, with their costs if the source is one of `PLANNED_DRAFTS`.
        vocabularies: how the draft's tokens translate, if they are not the target's.

    Raises:
        BundleError: if a skip set does not fit the target's stages.
    """

    def __init__(
        self,
        draft: str,
        bundle: Bundle,
        loaded: Mapping[str, Loaded],
        vocabularies: VocabularyMap | None = None,
    ) -> None:
        self._draft = draft
        self._bundle = bundle
        self._loaded = loaded
        self._vocabularies = vocabularies
        self._skips = (
            [_skip(bundle, each, loaded[TARGET].curve) for each in bundle.manifest.skip_sets]
            if draft in PLANNED_DRAFTS
            else []
        )

    @property
    def _mask_token(self) -> int | None:
        """The mask token of a draft with the target's tokens; None if it has none."""
        if DRAFT not in self._loaded or self._vocabularies is not None:
            return None
        return self._loaded[DRAFT].model.role.mask_token

    @property
    def sources(self) -> tuple[str, ...]:
        """Draft sources that a text may choose: the loaded one and those that need nothing more."""
        if self._draft == "none":
            return ("none",)
        found = {"none", "lookup", "recycling", self._draft}
        found |= {loaded_draft(self._bundle)} if DRAFT in self._loaded else set()
        found |= {"parallel"} if self._mask_token is not None else set()
        found |= {"layer-skip"} if self._skips else set()
        return tuple(name for name in DRAFTS if name in found)

    def drafter(
        self,
        runners: Mapping[str, Runner],
        learned: DrafterState,
        sampled: bool,
        source: str,
        grammar: Constraint | None = None,
        prediction: Prediction | None = None,
    ) -> Drafter:
        """Creates the drafter of one text.

        Args:
            runners: runner of the text in each role's model; the draft's may be missing.
            learned: what earlier texts taught.
            sampled: whether the text is sampled; if not, it is greedy.
            source: draft source, one of `sources`.
            grammar: matcher of the grammar that the text follows, if any.
            prediction: text that was predicted, if any; the source none does not use it.
        """
        if source != "auto":  # a single source uses no statistics of earlier texts
            learned = DrafterState(learned.successors)
        predicted = None
        if prediction is not None:
            predicted = PredictionDrafter(prediction, learned.calibration("prediction", sampled))
        if source in PLANNED_DRAFTS:
            groups = self._groups(runners, learned, sampled, source)
            if predicted is not None:
                groups = [[PricedRetriever(predicted, free=True)], *groups]
            return PlannedDrafter(groups, self._loaded[TARGET].curve, source, grammar)
        alone = self._alone(runners, learned, sampled, source)
        if predicted is not None and source != "none":
            alone = PredictedDrafter(predicted, alone)
        return alone if grammar is None else GrammarDrafter(alone, grammar)

    def keep(self, learned: DrafterState) -> None:
        """Stores acceptance rates and call costs for later runs."""
        if self._draft not in PLANNED_DRAFTS:  # only planned drafts use them
            return
        drafter_state.remember(self._bundle, learned.acceptance)
        for role, loaded in self._loaded.items():
            if loaded.profile is not None:
                seen = loaded.profile, loaded.curve
                profiles.remember_lived(self._bundle, role, loaded.engines, loaded.threads, seen)

    def _alone(
        self, runners: Mapping[str, Runner], learned: DrafterState, sampled: bool, source: str
    ) -> Drafter:
        if source == "lookup":
            return self._lookup(learned, sampled)
        if source == "recycling":
            return self._recycling(learned, sampled)
        if source in MODEL_DRAFTS and DRAFT in runners:
            calls = self._calls(runners)
            if source == "parallel":
                return self._parallel(calls, learned, sampled)
            return self._model(calls, learned, sampled)
        return NoDrafter()

    def _groups(
        self, runners: Mapping[str, Runner], learned: DrafterState, sampled: bool, source: str
    ) -> list[list[PricedSource[Drafter]]]:
        """Returns the sources of planned drafts, see `PlannedDrafter`."""
        models: list[PricedSource[Drafter]] = [
            self._priced_skip(skip, runners[TARGET], learned, sampled) for skip in self._skips
        ]
        if source == "layer-skip":
            return [models]
        if DRAFT in runners:
            calls, draft = self._calls(runners), self._loaded[DRAFT]
            model, context = self._model(calls, learned, sampled), window(draft.model)
            models.insert(0, PricedModel(model, draft.curve, context=context))
            if self._mask_token is not None:  # another way to draft by the same calls
                parallel = self._parallel(calls, learned, sampled)
                models.insert(1, PricedParallel(parallel, draft.curve, context=context))
        lookup = PricedRetriever(self._lookup(learned, sampled), free=True)
        recycling = PricedRetriever(self._recycling(learned, sampled))
        return [[lookup], [recycling], models]

    def _lookup(self, learned: DrafterState, sampled: bool) -> LookupDrafter:
        return LookupDrafter(learned.calibration("lookup", sampled))

    def _recycling(self, learned: DrafterState, sampled: bool) -> RecyclingDrafter:
        return RecyclingDrafter(learned.successors, learned.calibration("recycling", sampled))

    def _calls(self, runners: Mapping[str, Runner]) -> _Calls:
        runner, vocabularies = runners[DRAFT], self._vocabularies
        if isinstance(runner, HeadRunner):
            return HeadCalls(runner, runners[TARGET])
        if vocabularies is None:
            return ModelCalls(runner)
        if vocabularies.shares_enough:
            return SharedCalls(ModelCalls(runner), vocabularies)
        return RecodedCalls(runner)

    def _model(self, calls: _Calls, learned: DrafterState, sampled: bool) -> CallingDrafter:
        name = loaded_draft(self._bundle)
        calibration = learned.calibration(name, sampled)
        if isinstance(calls, RecodedCalls):
            assert self._vocabularies is not None
            calibrations = calibration, learned.calibration("model text", sampled)
            return RecodedDrafter(calls, self._vocabularies, calibrations)
        return ModelDrafter(calls, calibration, name)

    def _parallel(self, calls: _Calls, learned: DrafterState, sampled: bool) -> ParallelDrafter:
        assert self._mask_token is not None, "the draft was not trained for it"
        assert isinstance(calls, ModelCalls), "only an ordinary draft model has a mask token"
        return ParallelDrafter(calls, learned.calibration("parallel", sampled), self._mask_token)

    def _priced_skip(
        self, skip: _Skip, runner: Runner, learned: DrafterState, sampled: bool
    ) -> PricedModel:
        calibration = learned.calibration(skip.name, sampled)
        drafter = ModelDrafter(SkipCalls(runner, skip.path), calibration, skip.name)
        promising = skip.score is None or skip.score.speedup(sampled) > 1
        return PricedModel(drafter, skip.calls, _TRIAL_ROUNDS if promising else 0)


@dataclass(frozen=True)
class _Skip:
    """A skip set, ready to draft with.

    Attributes:
        name: name in statistics.
        path: stages to run.
        calls: seconds of its calls by number of rows.
        score: estimated speed; None if it was never measured.
    """

    name: str
    path: StagePath
    calls: Curve
    score: SkipScore | None


def _skip(bundle: Bundle, skip_set: SkipSet, passes: Curve) -> _Skip:
    """Prepares a skip set; its costs are scaled from those of the whole model at first."""
    role, score = bundle.target, skip_set.score
    name = role.layout.describe(skip_set.skipped)
    try:
        path = StagePath.without(role, skip_set.skipped)
    except ValueError as error:
        raise BundleError(f"{bundle.path}: skip set {name}: {error}: export it again") from error
    kept = 1 - len(skip_set.skipped) / role.stages[-1].stop
    return _Skip(
        name=f"skip {name}",
        path=path,
        calls=passes.scaled(score.draft_cost if score else kept),
        score=score,
    )
