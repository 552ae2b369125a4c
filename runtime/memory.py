"""How much memory a bundle takes, and what of it fits: arithmetic, done before anything is loaded.

Memory is counted per device and means anonymous plus shared pages. Engines say what they take for
a stage; here that is added up and fitted to a limit. What does not fit gives way in this order:

1. the prefill chunk, which costs time to the first token only, and the draft tree's size;
2. the draft model;
3. the context;
4. the placement: an engine that needs less, where the user left the choice open.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edgespec.bundle import DRAFT, TARGET, Bundle, Role
from edgespec.errors import MemoryLimitError
from edgespec.runtime.buckets import ROW_BUCKETS, SCRATCH_ROWS, capacity_bucket, row_bucket
from edgespec.runtime.engines import CallSizes, Engines, Footprint
from edgespec.runtime.sizes import stage_sizes

MIB = 1 << 20

LEAST_CONTEXT = capacity_bucket(1)
"""A context is not shortened below this many tokens unasked: prompts would no longer fit."""

HOST = "cpu"

_TERMS = ("baseline", "weights", "repacked", "kv", "logits", "workspace")

# Python with numpy, tokenizers and this package. Parsing a tokenizer makes eight bytes of each one.
_INTERPRETER_BYTES = 21 * MIB
_TOKENIZER_FACTOR = 8

_CHUNKS = tuple(size for size in reversed(ROW_BUCKETS) if size >= 8)


@dataclass(frozen=True)
class Wishes:
    """What the user wants, the dearest first; only what is listed may be fallen back to.

    Attributes:
        contexts: tokens of prompt and output.
        drafts: draft sources.
        engines: of each role, what may run it.
        tree: nodes of a draft tree.
        width: rows of a draft model's calls.
        texts: caches to have at once.
    """

    contexts: Sequence[int]
    drafts: Sequence[str]
    engines: Mapping[str, Sequence[Engines]]
    tree: int
    width: int
    texts: int = 1


@dataclass(frozen=True)
class Demand:
    """What one device's memory has to hold, in bytes.

    Attributes:
        device: cpu, or a device with memory of its own.
        baseline: the interpreter, the tokenizer and the engines' libraries.
        weights: weights as the bundle has them, or widened.
        repacked: weights in an engine's own layout.
        kv: caches at their largest.
        logits: results of the calls.
        workspace: compiled graphs and the largest call; more where loading takes more.
        limit: what may be used.
        mapped: file-backed pages, which the system can take back; not part of the total.
    """

    device: str
    baseline: int
    weights: int
    repacked: int
    kv: int
    logits: int
    workspace: int
    limit: int
    mapped: int

    @property
    def total(self) -> int:
        """All `terms`."""
        return sum(self.terms.values())

    @property
    def terms(self) -> dict[str, int]:
        """What counts, by its name: everything but the limit and `mapped`."""
        return {term: getattr(self, term) for term in _TERMS}


@dataclass(frozen=True)
class Plan:
    """What fits, and what it takes.

    Attributes:
        fits: whether `devices` stay within their limits; if not, this is the least that can be.
        context: tokens of prompt and output.
        draft: the draft source.
        max_tree: nodes of a draft tree at most.
        prefill_chunk: rows of a call that reads a prompt.
        engines: of each role that is loaded, the name of each stage's engine.
        devices: what each takes, with trees as large as wished or as `max_tree` allows.
    """

    fits: bool
    context: int
    draft: str
    max_tree: int
    prefill_chunk: int
    engines: Mapping[str, tuple[str, ...]]
    devices: tuple[Demand, ...]

    def require_fit(self, name: str) -> None:
        """Refuse what does not fit.

        Raises:
            MemoryLimitError: with the numbers of the first device that is too small for `name`.
        """
        for demand in self.devices:
            if demand.total > demand.limit:
                terms = ", ".join(f"{n} {size / MIB:.0f}" for n, size in demand.terms.items())
                raise MemoryLimitError(
                    f"{name} needs {demand.total / MIB:.0f} MiB on {demand.device} and "
                    f"{demand.limit / MIB:.0f} may be used ({terms}; context {self.context}, "
                    f"draft {self.draft}): raise --memory, or ask for a shorter --context, "
                    "--draft lookup or a bundle of lower precision"
                )


@dataclass(frozen=True)
class _Choice:
    """One way to run a bundle."""

    engines: Mapping[str, Engines]
    context: int
    draft: str
    tree: int
    chunk: int


def context_choices(context: int) -> tuple[int, ...]:
    """This context and the shorter ones that are worth falling back to, longest first."""
    shorter = []
    size = LEAST_CONTEXT
    while size < context:
        shorter.append(size)
        size = capacity_bucket(size + 1)
    return (context, *reversed(shorter))


def plan(bundle: Bundle, wishes: Wishes, limits: Mapping[str, int]) -> Plan:
    """The best that fits.

    Args:
        bundle: of which only the manifest is read.
        wishes: what to try.
        limits: bytes that may be used of each device's memory.

    Returns:
        The first choice that fits, in the order that this module describes; where none does, the
        one that needs least, with `fits` false.
    """
    account = _Account(bundle, wishes, limits)
    choices = tuple(_choices(wishes, _chunks(bundle)))
    for choice in choices:
        if account.fits(choice):
            return account.planned(choice)
    return account.planned(min(choices, key=account.total))


def _chunks(bundle: Bundle) -> Sequence[int]:
    """Rows of a prefill chunk, the most first.

    For a target in several stages half the rows make up for what each stage keeps by itself, and
    cost little of a prompt's time.
    """
    return _CHUNKS if len(bundle.target.stages) == 1 else _CHUNKS[1:]


def _choices(wishes: Wishes, chunks: Sequence[int]) -> Iterator[_Choice]:
    for engines in _placements(wishes.engines):
        for context in wishes.contexts:
            for draft in wishes.drafts:
                for tree, chunk in _call_sizes(wishes.tree, chunks):
                    yield _Choice(engines, context, draft, tree, chunk)


def _placements(engines: Mapping[str, Sequence[Engines]]) -> Iterator[Mapping[str, Engines]]:
    """All combinations, the first of each role first."""
    for combination in itertools.product(*engines.values()):
        yield dict(zip(engines, combination, strict=True))


def _call_sizes(tree: int, chunks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Nodes of a tree and rows of a prefill chunk: first the chunk shrinks, then the tree."""
    for chunk in chunks:
        yield tree, chunk
    while tree > 1:
        tree //= 2
        yield tree, chunks[-1]


class _Account:
    """Adds up what a choice takes."""

    def __init__(self, bundle: Bundle, wishes: Wishes, limits: Mapping[str, int]) -> None:
        self._roles = bundle.manifest.roles
        self._stages = {name: stage_sizes(bundle, name) for name in wishes.engines}
        self._python_bytes = _INTERPRETER_BYTES + _tokenizer_bytes(bundle)
        self._width = wishes.width
        self._texts = wishes.texts
        self._limits = limits

    def fits(self, choice: _Choice) -> bool:
        return all(demand.total <= demand.limit for demand in self._demands(choice))

    def total(self, choice: _Choice) -> int:
        return sum(demand.total for demand in self._demands(choice))

    def planned(self, choice: _Choice) -> Plan:
        return Plan(
            fits=self.fits(choice),
            context=choice.context,
            draft=choice.draft,
            max_tree=self._largest_tree(choice),
            prefill_chunk=choice.chunk,
            engines={
                role: tuple(engine.name for engine in choice.engines[role])
                for role in _loaded(choice.draft)
            },
            devices=self._demands(choice),
        )

    def _largest_tree(self, choice: _Choice) -> int:
        """With the pending token it fills a bucket, unless only the smaller tree fits."""
        if choice.draft == "none":
            return 0
        trees = (rows - 1 for rows in reversed(ROW_BUCKETS) if rows - 1 > choice.tree)
        larger = (tree for tree in trees if self.fits(replace(choice, tree=tree)))
        return next(larger, choice.tree)

    def _demands(self, choice: _Choice) -> tuple[Demand, ...]:
        prints: defaultdict[str, list[Footprint]] = defaultdict(list)
        shared: defaultdict[str, dict[tuple[str, str], int]] = defaultdict(dict)
        kv: defaultdict[str, int] = defaultdict(int)
        libraries: dict[tuple[str, str], int] = {(HOST, "python"): self._python_bytes}
        inputs = 0
        for name in _loaded(choice.draft):
            calls, rows = self._calls(name, choice), cache_rows(name, choice.context)
            for stage, engine in zip(self._stages[name], choice.engines[name], strict=True):
                taken = engine.footprint(stage, calls)
                prints[engine.memory].append(taken)
                known = shared[engine.memory].get((name, engine.name), 0)
                shared[engine.memory][name, engine.name] = max(known, taken.shared)
                row_bytes = 2 * stage.layers * stage.kv_width * stage.kv_bytes
                kv[engine.memory] += self._texts * rows * row_bytes
                libraries[HOST, engine.name] = engine.library_bytes
            inputs += _input_bytes(self._roles[name], calls)
        return tuple(
            Demand(
                device=device,
                baseline=sum(size for (place, _), size in libraries.items() if place == device),
                weights=sum(p.weights for p in prints[device]),
                repacked=sum(p.repacked for p in prints[device]),
                kv=kv[device],
                logits=(logits := sum(p.logits for p in prints[device])),
                # Loading comes before any text: its peak counts where that takes less later.
                workspace=max(
                    sum(p.workspace for p in prints[device])
                    + sum(shared[device].values())
                    + (inputs if device == HOST else 0),
                    max((p.loading for p in prints[device]), default=0) - kv[device] - logits,
                ),
                limit=self._limits[device],
                mapped=sum(p.mapped for p in prints[device]),
            )
            for device in sorted({HOST, *prints})
        )

    def _calls(self, name: str, choice: _Choice) -> CallSizes:
        rows = row_bucket(self._width if name == DRAFT else choice.tree + 1)
        return CallSizes(max(rows, choice.chunk), capacity_bucket(choice.context), rows)


def _loaded(draft: str) -> tuple[str, ...]:
    return (TARGET, DRAFT) if draft == "model" else (TARGET,)


def cache_rows(role: str, context: int) -> int:
    """The capacity that a role's cache grows to for texts of this many tokens."""
    return capacity_bucket(context + (SCRATCH_ROWS if role == DRAFT else 0))


def _input_bytes(role: Role, calls: CallSizes) -> int:
    """What the runtime makes: biases, rotary angles, two float64 score rows.

    Every stage behind the first gets hidden rows, too.
    """
    bias = 4 * calls.rows * (calls.capacity + calls.rows)
    rotary = 4 * 2 * (calls.capacity + calls.rows) * role.head_dim
    hidden = 4 * calls.rows * role.hidden_size * (len(role.stages) - 1)
    return bias + rotary + hidden + 2 * 8 * role.vocab_size


def _tokenizer_bytes(bundle: Bundle) -> int:
    manifest = bundle.manifest
    sizes = (manifest.files[name].size for name in manifest.tokenizer if name.endswith(".json"))
    return _TOKENIZER_FACTOR * max(sizes, default=0)
