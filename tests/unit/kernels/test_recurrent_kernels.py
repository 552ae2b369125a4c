"""Recurrent layers over trees: right, and a row has the bits that it has in plain decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from nodes import KERNELS, MISSING, assert_same, by_kernel, run_node, same_bits
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

pytestmark = pytest.mark.skipif(MISSING, reason="edgespec was installed without a C++ compiler")

VOCABULARY = 24
SLOTS, STATES = 160, 12


@dataclass(frozen=True)
class Layer:
    """A layer with random weights, whose input of a row follows from the row's token alone."""

    operator: str
    kernel: int
    channels: int
    key_heads: int = 0
    heads: int = 0
    key_size: int = 0
    value_size: int = 0
    normed: bool = True
    decay_size: int = 1
    activation: str = ""

    @property
    def strips(self):
        return -(-self.value_size // 16)

    @property
    def numbers(self):
        own = self.key_heads * self.key_size + self.heads * (self.decay_size + 16 * self.strips)
        return self.channels + own

    def outputs(self, call, pool, states, threads=1):
        x = self.rows[call.tokens]
        own = call.arrays()
        if not self.heads:
            return run_node(self.operator, [x, self.weight, pool, *own[:-1]], threads=threads)
        more = {"decay_size": self.decay_size, "activation": self.activation}
        return run_node(
            self.operator,
            [x, self.weight, *self.vectors, pool, states, *own],
            threads=threads,
            key_heads=self.key_heads,
            value_heads=self.heads,
            key_size=self.key_size,
            value_size=self.value_size,
            eps=1e-6,
            **(more if self.activation else {}),
        )

    @property
    def rows(self):
        width = 3 * self.channels
        if self.heads:
            more = 1 if self.operator == "GatedDelta" else 0
            width = self.channels + self.heads * (self.value_size + more + self.decay_size)
        return drawn(1, VOCABULARY, width)

    @property
    def weight(self):
        return drawn(2, self.kernel, self.channels)

    @property
    def vectors(self):
        factor = -(drawn(3, self.heads * self.decay_size) ** 2)
        bias = drawn(4, self.heads * self.decay_size)
        if self.operator == "GatedDelta":
            return factor, bias, drawn(5, self.value_size)
        shift = drawn(5, self.channels)
        skip = drawn(6, self.heads)
        norm = drawn(7, self.heads * self.value_size) if self.normed else None
        return shift, factor, bias, skip, norm


def with_states(operator, kernel, key_heads, heads, key_size, value_size):
    channels = 2 * key_heads * key_size + heads * value_size
    return Layer(operator, kernel, channels, key_heads, heads, key_size, value_size)


CONVOLUTION = Layer("ShortConv", 3, 41)
DELTA = with_states("GatedDelta", 4, 2, 4, 16, 32)
ODD = with_states("GatedDelta", 2, 1, 3, 9, 21)
KINDS = {
    "conv": CONVOLUTION,
    "delta": DELTA,
    "odd": ODD,
    "delta-of-keys": replace(DELTA, decay_size=16, activation="sigmoid"),
    "odd-of-keys": replace(ODD, decay_size=9, activation="silu"),
    "space": with_states("StateSpace", 4, 2, 4, 16, 32),
    "odd-space": with_states("StateSpace", 2, 3, 6, 9, 21),
    "space-without-norm": replace(with_states("StateSpace", 4, 2, 4, 8, 24), normed=False),
}
LAYERS = pytest.mark.parametrize("layer", KINDS.values(), ids=KINDS)


@cache
def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def silu(x):
    return x / (1 + np.exp(-x))


def expected(layer, text):
    """The outputs of a text, in float64, as `models/layers/sublayers.py` describes the layers."""
    x = layer.rows[np.asarray(text, int)].astype(np.float64)
    if layer.operator == "StateSpace":
        return expected_of_space(layer, x)
    weight = layer.weight.astype(np.float64)
    b, c, v = np.split(x, 3, axis=1) if not layer.heads else (1, None, x[:, : layer.channels])
    padded = np.concatenate([np.zeros((layer.kernel - 1, layer.channels)), b * v])
    mixed = sum(weight[j] * padded[j : j + len(x)] for j in range(layer.kernel))
    if not layer.heads:
        return c * mixed
    keys = layer.key_heads * layer.key_size
    heads = layer.heads
    q, k, v = np.split(silu(mixed), [keys, 2 * keys], axis=1)
    q, k = (each.reshape(len(x), layer.key_heads, layer.key_size) for each in (q, k))
    q, k = (each / np.sqrt((each**2).sum(-1, keepdims=True) + 1e-6) for each in (q, k))
    q, k = (each.repeat(heads // layer.key_heads, axis=1) for each in (q, k))
    v = v.reshape(len(x), heads, -1)
    factor, bias, norm = (each.astype(np.float64) for each in layer.vectors)
    gate, b, a = np.split(x[:, layer.channels :], [v[0].size, v[0].size + heads], axis=1)
    rate = 1 / (1 + np.exp(-b))
    decay = np.exp(factor * np.logaddexp(0, a + bias)).reshape(len(x), heads, -1, 1)
    gate = 1 / (1 + np.exp(-gate)) if layer.activation == "sigmoid" else silu(gate)
    state = np.zeros((heads, layer.key_size, layer.value_size))
    results = []
    for row in range(len(x)):
        state *= decay[row]
        error = v[row] - np.einsum("hk,hkv->hv", k[row], state)
        state += np.einsum("hk,hv->hkv", k[row], rate[row][:, None] * error)
        result = np.einsum("hk,hkv->hv", q[row] / np.sqrt(layer.key_size), state)
        result /= np.sqrt((result**2).mean(-1, keepdims=True) + 1e-6)
        results.append((result * norm).reshape(-1) * gate[row])
    return np.array(results)


def expected_of_space(layer, x):
    heads = layer.heads
    groups = layer.key_heads
    size = layer.value_size
    *vectors, norm = layer.vectors
    shift, factor, bias, skip = (each.astype(np.float64) for each in vectors)
    gate, inner, steps = np.split(x, [heads * size, heads * size + layer.channels], axis=1)
    padded = np.concatenate([np.zeros((layer.kernel - 1, layer.channels)), inner])
    mixed = sum(layer.weight[j] * padded[j : j + len(x)] for j in range(layer.kernel))
    keys = groups * layer.key_size
    v, k, q = np.split(silu(mixed + shift), [heads * size, heads * size + keys], axis=1)
    k, q = (each.reshape(len(x), groups, -1).repeat(heads // groups, axis=1) for each in (k, q))
    v = v.reshape(len(x), heads, size)
    steps = np.logaddexp(0, steps + bias)
    state = np.zeros((heads, layer.key_size, size))
    results = []
    for row in range(len(x)):
        state *= np.exp(factor * steps[row])[:, None, None]
        state += np.einsum("hk,hv->hkv", k[row], steps[row][:, None] * v[row])
        result = np.einsum("hk,hkv->hv", q[row], state) + skip[:, None] * v[row]
        result = (result.reshape(-1) * silu(gate[row])).reshape(groups, -1)
        if norm is None:
            results.append(result.reshape(-1))
            continue
        result /= np.sqrt((result**2).mean(-1, keepdims=True) + 1e-6)
        results.append(norm * result.reshape(-1))
    return np.array(results)


@dataclass(frozen=True)
class Sequence:
    """A text, as whoever runs recurrent layers keeps it: nothing of it is ever moved.

    Attributes:
        text: its tokens.
        recent: slots of its last rows.
        state: slot of a state; -1: of no row.
        behind: number of rows that the state does not have.
        checkpoints: earlier states, each as a sequence.
    """

    text: tuple[int, ...] = ()
    recent: tuple[int, ...] = ()
    state: int = -1
    behind: int = 0
    checkpoints: tuple[Sequence, ...] = ()

    def cut(self, length):
        """Returns the sequence with fewer rows, or as few as a checkpoint has that are fewer."""
        dropped = len(self.text) - length
        if dropped <= self.behind:
            recent = self.recent[: len(self.recent) - dropped]
            return replace(
                self, text=self.text[:length], recent=recent, behind=self.behind - dropped
            )
        shorter = [each for each in self.checkpoints if len(each.text) <= length]
        return shorter[-1] if shorter else Sequence()

    def slots(self):
        return {*self.recent}.union(*(each.recent for each in self.checkpoints))

    def states(self):
        return {self.state, *(each.state for each in self.checkpoints)} - {-1}


@dataclass
class Call:
    """Rows of some sequences: the certain ones first, and then a tree behind them."""

    tokens: list[int]
    write: list[int]
    parent: list[int]
    sequence: list[int]
    recent: list[int]
    starts: list[int]
    carry: list[tuple[int, int, int, int]]

    def arrays(self):
        lists = (self.write, self.parent, self.sequence, self.recent, self.starts)
        carry = np.array(self.carry, np.int32).reshape(-1, 4)
        return [*(np.array(each, np.int32) for each in lists), carry]


class Runner:
    """Runs random calls with sequences, and checks each row's bits."""

    def __init__(self, layer, threads=1):
        self.layer = layer
        self.threads = threads
        self.pool = np.full((SLOTS, layer.numbers), np.nan, np.float32)
        self.states = np.full((STATES, *self.state_shape()), np.nan, np.float32)
        self.sequences: list[Sequence] = []

    def state_shape(self):
        return self.layer.heads, self.layer.strips, self.layer.key_size, 16

    def free(self, rng, held, count):
        used = set().union(*(held(each) for each in self.sequences)) if self.sequences else set()
        size = SLOTS if held is Sequence.slots else STATES
        return [int(each) for each in rng.permutation(sorted(set(range(size)) - used))[:count]]

    def step(self, rng, trees):
        """Runs the sequences in one call; `trees` has certain tokens and (parent, token) of others.

        Returns the outputs of each one's rows.
        """
        call = Call([], [], [], [], [], [0], [])
        order = rng.permutation(len(self.sequences))
        states = self.free(rng, Sequence.states, STATES)
        total = sum(len(certain) + len(others) for certain, others in trees)
        slots = self.free(rng, Sequence.slots, total)
        firsts = {}
        for number in order:
            certain, others = trees[number]
            firsts[number] = first = len(call.tokens)
            call.tokens += [*certain, *(token for _, token in others)]
            call.parent += [-1, *range(first, first + len(certain) - 1)][: len(certain)]
            call.parent += [-1 if first + p < first else first + p for p, _ in others]
            call.sequence += [int(number)] * (len(certain) + len(others))
        call.write = slots
        targets = []
        for number, each in enumerate(self.sequences):
            call.recent += each.recent
            call.starts.append(len(call.recent))
            alone = sum(each.state in other.states() for other in self.sequences) == 1
            kept = each.state in {other.state for other in each.checkpoints}
            here = each.state >= 0 and alone and not kept and rng.random() < 0.7
            targets.append(each.state if here else states.pop())
            held = len(each.recent) - each.behind
            call.carry.append((each.state, targets[-1], held, len(trees[number][0])))
        found = self.layer.outputs(call, self.pool, self.states, self.threads)
        outputs = []
        for number, (certain, others) in enumerate(trees):
            own = slice(firsts[number], firsts[number] + len(certain) + len(others))
            outputs.append(found[own])
            text = self.sequences[number].text
            before = len(certain)
            for row, values in enumerate(found[own]):
                path = [row]
                while path[0] >= 0:
                    parent = call.parent[firsts[number] + path[0]]
                    path.insert(0, parent - firsts[number] if parent >= 0 else -1)
                tokens = [call.tokens[firsts[number] + place] for place in path[1:]]
                same_bits(values, plain(self.layer, (*text, *tokens)))
            self.accept(rng, number, call, firsts[number], before, targets[number])
        return outputs

    def accept(self, rng, number, call, first, certain, state):
        """Adds the certain rows and a random path behind them to a sequence."""
        each = self.sequences[number]
        rows = list(range(first, first + certain))
        while rng.random() < 0.8:
            last = rows[-1] if rows else -1
            children = [
                row
                for row in range(first + certain, len(call.tokens))
                if call.sequence[row] == number and call.parent[row] == last
            ]
            if not children:
                break
            rows.append(int(rng.choice(children)))
        behind = len(rows) - certain
        size = self.layer.kernel
        text = (*each.text, *(call.tokens[row] for row in rows))
        slots = (*each.recent, *(call.write[row] for row in rows))
        checkpoints = each.checkpoints
        if each.state not in (-1, state) and not each.behind:
            checkpoints = (*checkpoints, replace(each, checkpoints=()))[-2:]
        recent = slots[max(0, len(slots) - behind - size + 1) :]
        self.sequences[number] = Sequence(text, recent, state, behind, checkpoints)


@cache
def plain(layer, text):
    """The last row's output when a text is run row by row; it keeps all that it has."""
    pool, states = _kept(layer, text[:-1])
    call = Call(
        [text[-1]],
        [len(text) - 1],
        [-1],
        [0],
        [*range(len(text) - 1)],
        [0, len(text) - 1],
        [(0 if len(text) > 1 else -1, 0, len(text) - 1, 1)],
    )
    pool = pool.copy()
    states = states.copy()
    found = layer.outputs(call, pool, states)
    _STATES[layer, text] = pool, states
    return found[0]


_STATES: dict[tuple[Layer, tuple[int, ...]], tuple[np.ndarray, np.ndarray]] = {}


def _kept(layer, text):
    if not text:
        return (
            np.zeros((SLOTS, layer.numbers), np.float32),
            np.zeros((1, *Runner(layer).state_shape()), np.float32),
        )
    plain(layer, text)
    return _STATES[layer, text]


def random_tree(rng, most, certain):
    """Certain tokens, and a tree behind them: (parent, token), parents counted from the first."""
    tokens = [int(each) for each in rng.integers(0, VOCABULARY, certain)]
    others = []
    for row in range(int(rng.integers(0, most + 1))):
        parent = int(rng.integers(certain - 1, certain + row))
        others.append((parent, int(rng.integers(0, VOCABULARY))))
    return tokens, others


@LAYERS
def test_plain_decoding_is_what_the_layer_is_described_as(layer):
    text = tuple(int(each) for each in np.random.default_rng(7).integers(0, VOCABULARY, 40))
    found = np.array([plain(layer, text[: n + 1]) for n in range(len(text))])
    np.testing.assert_allclose(found, expected(layer, text), rtol=2e-4, atol=2e-5)


@LAYERS
@pytest.mark.parametrize("threads", [1, 3])
def test_a_chunk_has_the_bits_of_single_rows(layer, threads):
    rng = np.random.default_rng(8)
    runner = Runner(layer, threads)
    runner.sequences = [Sequence()]
    for size in (1, 64, 3, 17):
        runner.step(rng, [random_tree(rng, 0, size)])
    assert len(runner.sequences[0].text) == 85


@LAYERS
@pytest.mark.parametrize("seed", range(6))
def test_rows_have_their_bits_in_any_tree_company_and_after_any_cut(layer, seed):
    rng = np.random.default_rng(seed)
    runner = Runner(layer, threads=1 + seed % 2)
    runner.sequences = [Sequence() for _ in range(3)]
    for _ in range(12):
        trees = [random_tree(rng, 9, int(rng.integers(0, 4))) for _ in runner.sequences]
        runner.step(rng, trees)
        place = int(rng.integers(3))
        each = runner.sequences[place]
        runner.sequences[place] = each.cut(int(rng.integers(0, len(each.text) + 1)))
        if rng.random() < 0.3:  # a fork shares slots and states
            source = runner.sequences[int(rng.integers(3))]
            runner.sequences[place] = replace(source, checkpoints=())


def test_a_sequence_without_rows_is_brought_up_to_date():
    rng = np.random.default_rng(0)
    runner = Runner(DELTA)
    runner.sequences = [Sequence(), Sequence()]
    runner.step(rng, [([1, 2], [(1, 3), (2, 4), (3, 5)]), ([6], [])])
    runner.step(rng, [([], []), ([7], [])])
    assert not runner.sequences[0].behind
    runner.step(rng, [([8], []), ([9], [])])


def delta_call(**changed):
    usual = Call([1, 2, 3], [0, 1, 2], [-1, 0, 1], [0, 0, 1], [], [0, 0, 0], [(-1, 0, 0, 1)] * 2)
    usual = replace(usual, parent=[-1, 0, -1], carry=[(-1, 0, 0, 1), (-1, 1, 0, 1)])
    return replace(usual, **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"write": [0, 1, SLOTS]}, "write has slot 160 of a pool of 160"),
        ({"write": [0, 1, -1]}, "write has slot -1"),
        ({"parent": [-1, 1, -1]}, "row 1 has parent 1"),
        ({"parent": [-1, 0, 1]}, "rows 1 and 2 are of different sequences"),
        ({"sequence": [0, 1, 0], "parent": [-1, -1, -1]}, "sequence 0 do not lie together"),
        ({"sequence": [0, 0, 2]}, "row 2 is of sequence 2 of 2"),
        ({"starts": [0, 1, 0]}, "starts must"),
        ({"recent": [SLOTS], "starts": [0, 1, 1]}, "context has slot 160"),
        ({"carry": [(STATES, 0, 0, 1), (-1, 1, 0, 1)]}, "sequence 0 has states 12 and 0 of 12"),
        ({"carry": [(-1, -2, 0, 1), (-1, 1, 0, 1)]}, "sequence 0 has states -1 and -2"),
        ({"carry": [(-1, 0, 0, 1), (0, 1, 0, 1)]}, "sequences 0 and 1 have state 0"),
        ({"carry": [(-1, 0, 0, 1), (-1, 0, 0, 1)]}, "sequences 0 and 1 have state 0"),
        ({"carry": [(0, 0, 1, 1), (-1, 1, 0, 1)]}, "the state of sequence 0 has 1 of its rows"),
        ({"carry": [(-1, 0, 0, 3), (-1, 1, 0, 1)]}, "3 rows of sequence 0 are certain"),
        ({"carry": [(-1, 0, 0, 2), (-1, 1, 0, 1)], "parent": [-1, -1, -1]}, "row 1 must follow"),
        ({"parent": [-1, -1, -1]}, "row 1 must follow"),
        ({"carry": [(-1, 0, 0, 1)]}, "carry"),
    ],
)
def test_what_cannot_be_is_refused(changed, message):
    runner = Runner(DELTA)
    with pytest.raises(InvalidArgument, match=message):
        DELTA.outputs(delta_call(**changed), runner.pool, runner.states)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"decay_size": 3, "activation": "silu"}, "3 decays of 16 keys"),
        ({"activation": "tanh"}, "activation 'tanh' is not known"),
    ],
)
def test_what_no_layer_has_is_refused(changed, message):
    layer = replace(DELTA, **changed)
    runner = Runner(layer)
    with pytest.raises(Exception, match=message):
        layer.outputs(delta_call(), runner.pool, runner.states)


def computed():
    rng = np.random.default_rng(0)
    found = {}
    for name, layer in KINDS.items():
        runner = Runner(layer, threads=2)
        runner.sequences = [Sequence(), Sequence()]
        for step in range(5):
            outputs = runner.step(rng, [random_tree(rng, 9, 2), random_tree(rng, 4, 1)])
            found[f"{name}.{step}"] = np.concatenate(outputs)
    return found


@pytest.mark.parametrize("kernel", KERNELS[1:])
def test_instruction_sets_agree(kernel):
    plain = by_kernel("plain", "test_recurrent_kernels", "computed")
    assert_same(by_kernel(kernel, "test_recurrent_kernels", "computed"), plain)
