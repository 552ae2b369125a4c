"""The plan of a bundle on a machine: what runs where, how long a context may be, and its memory.

One file of arithmetic: nothing is loaded or measured, and only the manifest is read. Memory means
anonymous pages: weights of native graphs are mapped from their files, so the system can reclaim
them; they are counted where no limit was given, since reading them from the disk for each pass
would be slow.

What does not fit gives way in this order: the part of a default context beyond `USUAL_CONTEXT`, the
draft model, the rest of a default context. What the user asked for stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from edgespec.bundle import DRAFT, TARGET, Bundle, Role
from edgespec.errors import MemoryLimitError
from edgespec.runtime.arrays import spare_places
from edgespec.runtime.sequences.pool import KVPool
from edgespec.runtime.sequences.recurrent import RecurrentPool

HOST = "cpu"
"""The memory of the process itself."""

USUAL_CONTEXT = 4096
"""Tokens of a default context that are kept before the draft model is; as llama.cpp's and Ollama's.
"""

LEAST_CONTEXT = 256
"""Smallest default context in tokens: prompts would not fit into a shorter one."""

SPARE_ROWS = 254
"""Slots that a sequence takes besides its context: the largest tree is drafted, by layers of the
target perhaps, and then verified."""

LONG_CALL = 256
"""Rows of a call from which a device may compute layers that lie on the host: more than a tree has.
"""

LONG_CHUNK = 512
"""Rows of a prompt that are read so in a pass; the weights of these layers are copied for each."""

MIB = 1 << 20
_BASELINE = 90 * MIB  # the interpreter with numpy, tokenizers, ONNX Runtime and this package
# A picture while it is opened, the pass of a piece of so many patches, and rows that are kept.
_LOOKING = 384 * MIB
_PATCHES = 4096
_WHOLE = 256 * MIB  # of the pass of a picture that is not cut, besides
_TOKENIZER_FACTOR = 8  # bytes of a parsed tokenizer by those of its file
_CHUNK, _LOGIT_ROWS = 128, 64  # rows of the largest pass, and those of them with logits
# Bytes of a weight, scale included, as standard operators read it: 4 bits, 8 bits or whole numbers.
_PORTABLE_BYTES = {4: 0.5 + 4 / 32, 8: 1 + 4 / 16, 16: 2.0, 32: 4.0}


@dataclass(frozen=True)
class Placement:
    """Where a role runs.

    Attributes:
        device: the device's name.
        memory: name of the memory that it uses, `HOST` or a device's own.
        native: whether it runs the native graph; else the portable one.
        slots: largest number of slots that its pool can have; None: any.
        half: whether weights of the portable graph are in half precision: True: all, as NPUs have
            them; None: where that is exact; False: none, nor are caches.
        behind: the first layer that runs elsewhere, as do all behind it and the head, and where;
            None: all run here.
        rows: the rows of all calls if they are fixed; None: any.
        prompts: rows of a prompt that are read in a pass if the device of the layers behind reads
            prompts through all layers; 0: it does not.
    """

    device: str
    memory: str = HOST
    native: bool = True
    slots: int | None = None
    half: bool | None = None
    behind: tuple[int, Placement] | None = None
    rows: int | None = None
    prompts: int = 0

    def of(self, layer: int) -> Placement:
        """Returns where a layer runs."""
        return self if self.behind is None or layer < self.behind[0] else self.behind[1]

    def kv(self, role: Role) -> dict[int, str]:
        """Returns the number format of each layer's keys and values."""
        held = role.precision.kv
        formats = dict[int, str]()
        for layer in (each.layer for each in role.native.pools):
            where = self.of(layer)
            if where.native or held == "fp32":
                formats[layer] = held
            else:  # portable graphs have none in 8 bits
                formats[layer] = "fp32" if where.half is False else "fp16"
        return formats


@dataclass(frozen=True)
class PlacementRequest:
    """What the user asked for, as far as memory depends on it.

    Attributes:
        roles: where the roles run; without a draft model only the target.
        context: tokens of prompt and output together; None: as many as fit.
        sequences: number of sequences of full length that pools have room for.
        draft: whether the draft model must not give way.
        skipping: whether the target without some layers drafts; of that devices have copies.
        limits: bytes by memory that may be taken.
        adapters: bytes that adapters take on the host.
    """

    roles: Mapping[str, Placement]
    context: int | None = None
    sequences: int = 1
    draft: bool = False
    skipping: bool = False
    limits: Mapping[str, int] = field(default_factory=dict)
    adapters: int = 0


@dataclass(frozen=True)
class Demand:
    """What one memory is needed for, in bytes.

    Attributes:
        memory: its name.
        baseline: interpreter, libraries and tokenizer.
        weights: weights that are not mapped.
        kv: keys, values and states at their largest.
        workspace: results of operators in the largest pass, logits among them, and rows of
            pictures that fill the context where these are of any size.
        mapped: weights that are computed with where their file is mapped, not part of the total.
        limit: bytes that may be taken; with `mapped` if no limit was given.
    """

    memory: str
    baseline: int
    weights: int
    kv: int
    workspace: int
    mapped: int
    limit: int

    @property
    def total(self) -> int:
        """The sum of all parts but `mapped`."""
        return self.baseline + self.weights + self.kv + self.workspace


@dataclass
class _Needs:
    """What one memory is needed for so far; see `Demand`."""

    weights: int = 0
    kv: int = 0
    workspace: int = 0
    mapped: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """What a bundle is loaded as.

    Attributes:
        roles: where each loaded role runs.
        context: largest number of tokens of prompt and output together.
        slots: largest number of slots of each role's pool.
        demands: what each memory is needed for.
        dropped: what gave way to memory, as whole sentences.
    """

    roles: Mapping[str, Placement]
    context: int
    slots: Mapping[str, int]
    demands: tuple[Demand, ...]
    dropped: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every memory has room."""
        return all(each.total <= each.limit for each in self.demands)

    def require_fit(self) -> None:
        """Checks that every memory has room.

        Raises:
            MemoryLimitError: if one has none; it says what takes how much, and what helps.
        """
        for each in self.demands:
            if each.total > each.limit:
                raise MemoryLimitError(
                    f"a context of {self.context:,} tokens needs {_mib(each.total)} of memory on "
                    f"{each.memory} (KV cache {_mib(each.kv)}, weights {_mib(each.weights)}, "
                    f"workspace {_mib(each.workspace)}), and {_mib(max(each.limit, 0))} are free: "
                    "lower --context, raise --memory, use --draft lookup, or close other programs"
                )


def plan(bundle: Bundle, request: PlacementRequest, free: Mapping[str, int]) -> MemoryPlan:
    """Finds the best plan that memory has room for.

    Args:
        bundle: the bundle, whose roles have native graphs.
        request: what the user asked for.
        free: free bytes of each memory in use.

    Returns:
        The first that fits, in the order that this module's docstring lists; if none does, the one
        that needs least memory.
    """
    first: MemoryPlan | None = None
    for placements, context in _choices(bundle, request):
        made = _planned(bundle, placements, context, request, free)
        first = first or made
        if made.fits:
            break
    assert first is not None, "there is always a choice"
    dropped = []
    if request.context is None and made.context < first.context:
        dropped.append(f"the context is {made.context:,} tokens, to fit the memory")
    if len(made.roles) < len(first.roles):
        dropped.append("the draft model is left out, to fit the memory")
    roles, demands = made.roles, made.demands
    if roles[TARGET].prompts:
        demands = _with_prompts(bundle, made, request)
        if made.context < LONG_CALL or any(each.total > each.limit for each in demands):
            roles = {**roles, TARGET: replace(roles[TARGET], prompts=0)}
            demands = made.demands
    return MemoryPlan(roles, made.context, made.slots, demands, tuple(dropped))


def _with_prompts(
    bundle: Bundle, made: MemoryPlan, request: PlacementRequest
) -> tuple[Demand, ...]:
    """Returns what is needed where a device reads prompts through layers on the host, too.

    It has the weights of one such layer and room for another one's, and keys and values of one.
    The host has their weights mapped in that form, too.
    """
    role = bundle.target
    placed = made.roles[TARGET]
    assert placed.behind is not None, "another device reads prompts"
    first, there = placed.behind
    layer = int(portable_bytes(role, there.half) * _layer_share(role))
    slots = made.slots[TARGET] + spare_places(made.slots[TARGET])
    kv = slots * max(KVPool.slot_bytes([each], "fp32") for each in role.native.pools)
    demands = []
    for each in made.demands:
        further = (kv, 2 * layer + _workspace(role)) if each.memory == there.memory else (0, 0)
        mapped = first * layer if each.memory == HOST else 0
        demands.append(
            replace(
                each,
                kv=each.kv + further[0],
                workspace=each.workspace + further[1],
                mapped=each.mapped + mapped,
                limit=each.limit - (0 if each.memory in request.limits else mapped),
            )
        )
    return tuple(demands)


def _choices(
    bundle: Bundle, request: PlacementRequest
) -> Iterator[tuple[Mapping[str, Placement], int]]:
    """Yields placements and contexts, the best first."""
    longest = bundle.target.context_length
    slots = request.roles[TARGET].slots
    if slots is not None:
        longest = min(longest, max(slots - SPARE_ROWS, LEAST_CONTEXT))
    contexts = [longest if request.context is None else request.context]
    while request.context is None and contexts[-1] > LEAST_CONTEXT:
        contexts.append(max(contexts[-1] * 3 // 4 // 64 * 64, LEAST_CONTEXT))
    alone = {name: each for name, each in request.roles.items() if name != DRAFT}
    sets = (
        [request.roles] if request.draft or DRAFT not in request.roles else [request.roles, alone]
    )
    usual = [each for each in contexts if each >= USUAL_CONTEXT] or contexts[:1]
    for some in (usual, contexts[len(usual) :]):
        for placements in sets:
            for context in some:
                yield placements, context


def _planned(
    bundle: Bundle,
    placements: Mapping[str, Placement],
    context: int,
    request: PlacementRequest,
    free: Mapping[str, int],
) -> MemoryPlan:
    slots = {}
    needs = defaultdict[str, _Needs](_Needs)
    for name, placed in placements.items():
        role = bundle.manifest.roles[name]
        length = min(context, role.context_length)
        slots[name] = request.sequences * (length + SPARE_ROWS)
        if placed.slots is not None:
            slots[name] = min(slots[name], placed.slots)
        _add_caches(needs, role, placed, slots[name], request.sequences)
        _add_weights(needs, bundle, name, placed, request.skipping)
        if (vision := role.vision) is not None:
            needs[HOST].workspace += _LOOKING * -(-max(vision.patches, 1) // _PATCHES)
            if vision.grid is not None:
                rows = request.sequences * length * vision.streams
                needs[HOST].workspace += _WHOLE + 4 * role.hidden_size * rows
            needs[HOST].mapped += bundle.manifest.files[vision.data].size
    needs[HOST].weights += request.adapters  # the process itself is always there
    demands = []
    for memory, own in needs.items():
        baseline = _BASELINE + _tokenizer_bytes(bundle) if memory == HOST else 0
        limit = request.limits.get(memory)
        if limit is None:  # what is mapped should stay in memory
            limit = free.get(memory, 0) - own.mapped
        demands.append(Demand(memory, baseline, **vars(own), limit=limit))
    return MemoryPlan(placements, context, slots, tuple(demands))


def _add_caches(
    needs: defaultdict[str, _Needs], role: Role, placed: Placement, slots: int, sequences: int
) -> None:
    """Adds keys, values and states of a role, wherever its layers run."""
    formats = placed.kv(role)
    for each in role.native.pools:
        where = placed.of(each.layer)
        fused = not where.native and where.rows is None
        spare = spare_places(slots) if fused else 0
        needs[where.memory].kv += (slots + spare) * KVPool.slot_bytes([each], formats)
    for held in role.native.recurrent:
        states = RecurrentPool.planned_bytes([held], sequences)
        needs[placed.of(held.layer).memory].kv += states


def _add_weights(
    needs: defaultdict[str, _Needs],
    bundle: Bundle,
    name: str,
    placed: Placement,
    skipping: bool,
) -> None:
    """Adds the weights of a role, and what its passes compute, wherever it runs."""
    role = bundle.manifest.roles[name]
    stored = bundle.manifest.files[role.native.data].size
    for where, share in _shares(role, placed):
        own = needs[where.memory]
        own.workspace += _workspace(role)
        if where.native:
            own.mapped += int(share * stored)
            continue
        weights = portable_bytes(role, where.half) * (2 if name == TARGET and skipping else 1)
        if role.is_head:
            weights += _borrowed_bytes(bundle.target, where.half)
        own.weights += int(share * weights)


def _shares(role: Role, placed: Placement) -> list[tuple[Placement, float]]:
    """Returns where a role runs, and about what share of its weights each place has."""
    if placed.behind is None:
        return [(placed, 1.0)]
    first, other = placed.behind
    table = role.vocab_size * role.hidden_size / sum(role.native.formats.values())
    layer = _layer_share(role)
    behind = (role.layers - first) * layer
    return [(placed, table + first * layer), (other, table + behind)]


def _layer_share(role: Role) -> float:
    """Returns about what share of a role's weights a layer has."""
    whole = sum(role.native.formats.values())
    table = role.vocab_size * role.hidden_size
    return max(whole - (1 if role.tied else 2) * table, 0) / role.layers / whole


def portable_bytes(role: Role, half: bool | None = None) -> int:
    """Returns the bytes of a role's weights in standard operators, about; see `Placement.half`."""
    held = [(16 if half else _bits(name), count) for name, count in role.native.formats.items()]
    floats = {16: 32} if half is False else {}
    return int(sum(count * _PORTABLE_BYTES[floats.get(bits, bits)] for bits, count in held))


def _borrowed_bytes(target: Role, half: bool | None) -> int:
    """Returns the bytes of embedding and output projection, of which a head's graph has copies."""
    whole = sum(target.native.formats.values())
    table = target.vocab_size * target.hidden_size
    return int(portable_bytes(target, half) * (1 if target.tied else 2) * table / whole)


def _bits(name: str) -> int:
    """Returns the bits that standard operators need for a format of tiles."""
    if name in ("f16", "bf16"):
        return 16
    return 32 if name == "f32" else 4 if name.startswith(("q2", "q3", "q4")) else 8


def _workspace(role: Role) -> int:
    """Returns the bytes of the largest pass: rows between operators, and logits."""
    widest = max([role.hidden_size, *(each.width for each in role.layout)])
    vision = role.vision
    count = _CHUNK if vision is None or not vision.together else max(_CHUNK, vision.rows)
    if role.both_ways:
        count = max(_CHUNK, role.context_length)
    rows = count * (4 * role.hidden_size + 3 * widest)
    return 4 * (rows + _LOGIT_ROWS * (role.output_tokens or role.vocab_size))


def _tokenizer_bytes(bundle: Bundle) -> int:
    names = {
        *bundle.manifest.tokenizer,
        *(each.tokenizer for each in bundle.manifest.roles.values()),
    }
    sizes = [bundle.manifest.files[name].size for name in names if name in bundle.manifest.files]
    return _TOKENIZER_FACTOR * max(sizes, default=0)


def _mib(size: int) -> str:
    return f"{size / MIB:,.0f} MiB"
