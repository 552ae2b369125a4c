"""The head that a model came with, in PyTorch, against its definition."""

from __future__ import annotations

import numpy as np
import torch
from checkpoints import make_checkpoint
from mtp import MtpReference, normed_rows, write_mtp

from edgespec import bundle as bundles
from edgespec import export
from edgespec.export import ExportOptions
from edgespec.training.drafting import TextBatch
from edgespec.training.given_head import GivenHead
from edgespec.training.kinds import module_of
from edgespec.training.options import MTP, TrainingOptions
from edgespec.training.target_graph import TargetGraph

LENGTH, DEPTHS = 11, 3


def test_unrolled_depths_equal_the_definition(tmp_path):
    """Gates, norms whose weights lack 1, and heads of which a part is rotated."""
    folder = tmp_path / "model"
    model = make_checkpoint(folder, "qwen3_5_text")
    weights = write_mtp(folder, model.config)
    export.make(folder, tmp_path / "bundle", "none", ExportOptions("fp32"))
    bundle = bundles.load(tmp_path / "bundle")
    given = GivenHead(folder, bundle)
    options = given.chosen(TrainingOptions(kind=MTP, init=str(folder), steps=DEPTHS))
    head = module_of(options, given.sizes(), TargetGraph(bundle))
    given.fill(head)
    tokens = torch.from_numpy(np.random.default_rng(3).integers(0, 331, (1, LENGTH)))
    rows = {}
    handle = model.model.norm.register_forward_pre_hook(lambda _, given: rows.update(raw=given[0]))
    normed = normed_rows(model, tokens[0].tolist())
    handle.remove()
    embedded = model.get_input_embeddings()(tokens).detach()
    nothing = [torch.zeros(1, LENGTH, dtype=torch.int64)] * 4
    with torch.no_grad():
        steps = list(head.unroll(TextBatch(rows["raw"], embedded, tokens, *nothing)))
    assert [step.depth for step in steps] == list(range(DEPTHS))
    reference = MtpReference(weights, model)
    for last in range(LENGTH - 1):
        hidden = normed[: last + 1]
        for depth, step in enumerate(steps[: LENGTH - 1 - last]):
            places = torch.arange(last + depth + 1)
            with torch.no_grad():
                sees = places[:, None] >= places
                _, own = reference.step(tokens[0, places + 1], hidden, places, sees)
            hidden = torch.cat((hidden, own[-1:]))
            np.testing.assert_allclose(step.rows[0, last], own[-1], rtol=1e-4, atol=1e-4)
