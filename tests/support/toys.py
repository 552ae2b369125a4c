"""A model in a few lines of Python that keeps the contract of native graphs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from edgespec.runtime.sequences.model import Model, PassCost
from edgespec.runtime.sequences.pool import KVPool

VOCABULARY = 50


class Given(PassCost):
    """Costs that stay as they are: of one row, and of a further one."""

    def __init__(self, first, further):
        super().__init__({1: first, 2: first + further})

    def observe(self, rows, seconds):
        pass


class ToyGraph:
    """Logits depend on all tokens that a row sees, which it reads from slots of the pool.

    The `noise` of two models that differ only a little makes one a good draft of the other.
    """

    def __init__(self, noise=0.0):
        self.noise = noise
        self.calls = []

    def __call__(self, feeds):
        tokens, write, parent = (feeds[name].tolist() for name in ("input_ids", "write", "parent"))
        pool = feeds["pool.0"]
        context = feeds["context"]
        starts = feeds["starts"]
        assert len(set(write)) == len(write)
        assert not set(write) & set(context.tolist())
        owners = feeds["sequence"].tolist()
        assert owners == sorted(owners)
        self.calls.append(len(tokens))
        seen = []
        for row, token in enumerate(tokens):
            pool[:, :, write[row]] = token + 1
            begin = starts[owners[row]]
            end = starts[owners[row] + 1]
            before = seen[parent[row]] if parent[row] >= 0 else context[begin:end].tolist()
            seen.append([*before, write[row]])
        self.seen = seen
        rows = [self.logits(pool[0, 0, seen[row], 0]) for row in feeds["logit_rows"].tolist()]
        return {"logits": np.array(rows, np.float32).reshape(-1, VOCABULARY + 3)}

    def logits(self, tokens):
        assert (tokens > 0).all(), "a slot that nothing was written to"
        path = tuple(int(token) - 1 for token in tokens[-3:])
        generator = np.random.default_rng((*path, len(tokens) % 7))
        own = np.random.default_rng((*path, 0, 1))
        logits = 3 * generator.standard_normal(VOCABULARY + 3)
        return logits + self.noise * own.standard_normal(VOCABULARY + 3)


class Ranking(ToyGraph):
    """Ranks rows, as a device does."""

    longest = 64

    def __init__(self, noise=0.0):
        super().__init__(noise)
        self.queued = []

    def best(self, calls):
        self.queued.append(len(calls))
        found = []
        for number, feeds in enumerate(calls):
            read = {"input_ids": found[-1][:, 0].astype(np.int64)} if number else {}
            assert all(each.shape == feeds[name].shape for name, each in read.items())
            logits = self({**feeds, **read})["logits"][:, :VOCABULARY]
            best = np.argsort(-logits, kind="stable")[:, :32]
            found.append(np.hstack([best, np.take_along_axis(logits, best, 1)]).astype(np.float32))
        return found


class Tapped(ToyGraph):
    """A target whose features are the position and the token of each row."""

    def __call__(self, feeds):
        outputs = super().__call__(feeds)
        places = [len(slots) - 1 for slots in self.seen]
        return {**outputs, "features": features(places, feeds["input_ids"])}


def features(positions, tokens):
    return np.stack([positions, tokens], axis=1).astype(np.float32)


def tapped_model():
    model = Model(Tapped(), KVPool([toy_shape()], "fp32"), [])
    model.cost = Given(1.0, 0.05)
    return model


def toy_shape(layer=0, kv_heads=1, dim=16):
    return SimpleNamespace(layer=layer, kv_heads=kv_heads, dim=dim, window=None)


def toy_model(noise=0.0, limit=None, cost=(1.0, 0.05)):
    model = Model(ToyGraph(noise), KVPool([toy_shape()], "fp32", limit), [])
    model.cost = Given(*cost)
    return model
