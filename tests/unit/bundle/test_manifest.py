"""What a manifest may say: its fields, their types, and values that others compute with."""

from __future__ import annotations

import json

import pytest
from manifests import changed, manifest_of, refused

from edgespec import bundle as bundles
from edgespec.bundle import MANIFEST
from edgespec.system import records


def test_manifest_fields_are_checked_by_name_and_type(folder):
    whole = manifest_of(folder)

    def role(**changes):
        return {"roles": {"target": {**whole["roles"]["target"], **changes}}}

    cases = [
        ({"surprise": 1}, "manifest.surprise: unknown field"),
        (role(surprise=1), "manifest.roles.target.surprise: unknown field"),
        (role(layers="2"), "manifest.roles.target.layers: expected int, found '2'"),
        (role(attention_factor=10**400), "attention_factor: expected float, found 1000"),
        (role(attention_factor="1"), "roles.target.attention_factor: expected float, found '1'"),
        (role(attention_factor=True), "roles.target.attention_factor: expected float, found True"),
        (role(stages=[]), "manifest.roles.target.stages: unknown field"),
        (role(native=None), "manifest.roles.target.native: expected dict"),
        (role(tied=1), "manifest.roles.target.tied: expected bool, found 1"),
        (role(eos_ids=[True]), "manifest.roles.target.eos_ids[0]: expected int, found True"),
        ({"files": []}, "manifest.files: expected dict"),
        ({"roles": {"draft": whole["roles"]["target"]}}, "no role 'target'"),
    ]
    for changes, part in cases:
        (folder / MANIFEST).write_text(json.dumps({**whole, **changes}))
        refused(folder, part)
    for name in whole:
        if name != "format":
            rest = {key: value for key, value in whole.items() if key != name}
            (folder / MANIFEST).write_text(json.dumps(rest))
            refused(folder, f"manifest.{name}: missing")


SIZES = ("hidden_size", "heads", "kv_heads", "head_dim", "vocab_size", "parameters")
NATIVE = "roles.target.native"
STILL = {"agreement": 0.5, "chain": 3, "tokens_per_second": 0.0}
MOVING = {**STILL, "tokens_per_second": 9.0}
SCORE = {
    "draft_cost": 0.5, "plain_tokens_per_second": 9.0, "engine": "x",
    "greedy": MOVING, "sampled": MOVING,
}  # fmt: skip
SCORES = [
    {**SCORE, **change}
    for change in (
        {"sampled": STILL},
        {"plain_tokens_per_second": 0},
        *({"draft_cost": cost} for cost in (0, -1, float("nan"))),
    )
]


@pytest.mark.parametrize(
    ("place", "values", "part"),
    [
        ("roles.target.layers", [0, -1, 3, 10**30], ""),
        *((f"roles.target.{size}", [0, 10**30], f"roles.target.{size} is ") for size in SIZES),
        ("roles.draft.context_length", [0, -1, 1], "roles.draft.context_length is "),
        ("roles.target.inv_freq", [[]], "roles.target.inv_freq is ("),
        (
            "roles.target.inv_freq",
            [[0.5] * 11 + [float("nan")]],
            "roles.target: RoPE table default: inv_freq is (",
        ),
        (
            "roles.target.attention_factor",
            [0.0, -1.0, float("inf"), float("nan")],
            "roles.target: RoPE table default: attention_factor is ",
        ),
        (
            "roles.target.ropes",
            [
                [{"name": "x", "inv_freq": [0.0], "attention_factor": 1.0, "growth": each}]
                for each in (
                    {"scale": 0.0, "span": 8, "offset": 1},
                    {"scale": 0.1, "span": 0, "offset": 1},
                    {"scale": 0.1, "span": 8, "offset": -1},
                    {"scale": 1e308, "span": 8, "offset": 1},
                    {"scale": 0.1, "span": 10**30, "offset": 1},
                    {"scale": 0.1, "span": 8, "offset": 10**30},
                )
            ],
            "roles.target: RoPE table x: growth is Growth(",
        ),
        ("roles.target.sublayers", [[], [{"layer": 0, "kind": "x"}]], "roles.target."),
        ("roles.target.eos_ids", [[-1]], "roles.target.eos_ids is (-1,)"),
        ("roles.draft.mask_token", [-1, 331, 10**30], "roles.draft.mask_token is "),
        ("roles.draft.output_tokens", [-1, 332], "roles.draft.output_tokens is "),
        (
            "roles.target.precision.weights",
            ["x", "w8a8", "w8a16"],
            "roles.target.precision.weights is '",
        ),
        ("roles.target.precision.kv", ["x"], "roles.target.precision.kv is 'x'"),
        ("roles.target.precision.block_size", [0], "roles.target.precision.block_size is 0"),
        ("roles.draft.precision.weights", ["int8"], "roles.draft.precision.block_size is 0"),
        ("roles.draft.precision.lm_head", ["int8"], "roles.draft.precision.block_size"),
        (f"{NATIVE}.ropes", [["x"]], "roles.target.native.ropes is ('x',)"),
        (f"{NATIVE}.pools.0.layer", [-1, 1, 2, 10**30], "roles.target.native.pools is "),
        (f"{NATIVE}.pools.0.kv_heads", [0, 10**30], "roles.target.native.pools[0].kv_heads is "),
        (f"{NATIVE}.pools.0.dim", [0, 24, 656], "roles.target.native.pools[0].dim is "),
        (f"{NATIVE}.pools.0.window", [0, -1], "roles.target.native.pools[0].window is "),
        *(
            (
                f"{NATIVE}.recurrent",
                [[{"layer": 0, "width": 4, "before": 3} | change]],
                "roles.target.native.recurrent[0].",
            )
            for change in (
                {"layer": 2},
                {"width": 0},
                {"before": 16},
                {"state": [1, 2]},
                {"state": [2**20, 1, 2**20, 16]},
            )
        ),
        ("skip_sets", [[{"skipped": each}] for each in ([], [-1], [1, 4])], "skip_sets[0].skipped"),
        ("skip_sets", [[{"skipped": [1], "score": s}] for s in SCORES], "skip_sets[0].score is "),
    ],
)
def test_values_that_nothing_can_be_computed_with_are_refused(folder, place, values, part):
    whole = (folder / MANIFEST).read_text()
    for value in values:
        (folder / MANIFEST).write_text(changed(whole, place, value))
        refused(folder, f"manifest.{part}", "which is not valid: export the checkpoint again")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("roles.draft.context_length", 2),
        ("roles.draft.context_length", 2**31),
        ("roles.draft.attention_factor", 1.25),
        ("roles.draft.tied", True),
        ("roles.draft.mask_token", 0),
        ("roles.draft.mask_token", 330),
        ("roles.target.native.pools.0.window", 1),
    ],
)
def test_the_least_and_the_most_of_a_value_load(folder, place, value):
    text = changed((folder / MANIFEST).read_text(), place, value)
    (folder / MANIFEST).write_text(text)
    assert records.encode(bundles.load(folder).manifest) == json.loads(text)
