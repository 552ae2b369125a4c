"""Texts of which one runner shares passes and another is alone, to compare what they compute."""

from __future__ import annotations

import numpy as np
import parity

from edgespec import bundle as bundles
from edgespec.export import export_bundle
from edgespec.runtime.execution.feeds import Rows
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.trees.tree import TokenTree


def a_tree(rng, vocab, nodes):
    """Returns rows of a random tree below a pending token."""
    parents = [int(rng.integers(-1, number)) if number else -1 for number in range(nodes)]
    tree = TokenTree(rng.permutation(vocab)[:nodes], np.array(parents, np.int64))
    return Rows.tree(int(rng.integers(0, vocab)), tree)


def joint_bundle(folder, architecture, changes, options):
    """Makes a bundle of random weights, with two heads of keys unless `changes` say otherwise."""
    parity.made(folder / "target", architecture, **{"num_key_value_heads": 2, **changes})
    export_bundle(folder / "target", folder / "bundle", None, options)
    return bundles.load(folder / "bundle")


class Twins:
    """A text in two runners: one shares passes, the other is alone."""

    def __init__(self, model, rng, length):
        self.rng, self.vocab = rng, model.role.vocab_size
        text = rng.integers(0, self.vocab, length).tolist()
        self.joined, self.alone = Runner(model), Runner(model)
        for each in (self.joined, self.alone):
            each.prefill(text)

    def ask(self, nodes):
        self.rows = a_tree(self.rng, self.vocab, nodes)
        return self.joined, self.rows

    def check(self, results):
        """The results of the shared pass are those of its own, and so is what is kept of them.

        Bit for bit, or nearly so on engines whose rows are not alike in all calls.
        """
        n = len(self.rows.tokens)
        expected = self.alone.verify(self.rows)["logits"][:n].copy()
        if self.joined.model.exact:
            np.testing.assert_array_equal(results[:n], expected)
        else:
            assert np.linalg.norm(results[:n] - expected) < 0.05 * np.linalg.norm(expected)
        chain = [0]
        for row in range(1, n):
            if self.rows.parents[row] == chain[-1]:
                chain.append(row)
        kept = chain[: int(self.rng.integers(1, len(chain) + 1))]
        self.joined.commit(kept)
        self.alone.commit(kept)


def make_round(passes, asking):
    """Makes the passes of these texts, {twins: nodes}, and checks each; returns their sizes."""
    twins, sizes = list(asking), []
    asked = [each.ask(nodes) for each, nodes in asking.items()]
    for made in passes.verify(asked):
        sizes.append(len(made))
        # The other runner of a text makes passes of its own, which overwrite what this one gave.
        copies = [(number, results["logits"].copy()) for number, results in made]
        taken = [twins[number].joined for number, _ in made]
        assert len({id(runner) for runner in taken}) == len(taken)
        for runner in taken:
            runner._new_kv = [[_kept(part) for part in stage] for stage in runner._new_kv]
        for number, logits in copies:
            twins[number].check(logits)
    return sizes


def _kept(part):
    """Returns a copy of new rows on the host; on a device each shape of calls has its own."""
    return np.array(part) if isinstance(part, np.ndarray) else part
