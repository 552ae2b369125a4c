"""Training a head for the embedded pair's target."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkout import ROOT
from checkpoints import make_checkpoint
from mtp import write_mtp
from native_llms import cheapen, with_library
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from edgespec import LLM, export
from edgespec import bundle as bundles
from edgespec.errors import CheckpointError, InputError
from edgespec.export import ExportOptions
from edgespec.models.embedded import BUNDLE
from edgespec.training.card import card as training_card
from edgespec.training.device import TorchDevice
from edgespec.training.given_head import GivenHead
from edgespec.training.options import DFLASH, DSPARK, EAGLE3, GATED, KINDS, MTP, TrainingOptions
from edgespec.training.preparation import FIRST, HELD_OUT
from edgespec.training.promise import promised_speedup
from edgespec.training.shards import Shards
from edgespec.training.target_graph import TargetGraph
from edgespec.training.target_model import TorchTarget
from edgespec.training.target_texts import TargetReader, TargetWriter
from edgespec.training.texts import texts_of
from edgespec.training.training import WORK, Training

NEW = [kind for kind in KINDS if kind != MTP]  # that do not come with a model
OPTIONS = TrainingOptions(
    taps=(2, 4, 6),
    intermediate_size=64,
    draft_vocabulary=256,
    generate=False,
    window=64,
    batch=128,
    steps=3,
    disk=64 << 20,
    threads=1,
)
TEXT = "".join(
    f"def add_{n}(values):\n    total = {n}\n    for value in values:\n        total += value\n"
    f"    return total\n\n\n"
    for n in range(60)
)


@pytest.fixture(scope="module")
def target():
    device = TorchDevice(torch.device("cpu"), torch.float32, 1 << 30)
    return TorchTarget(bundles.load(BUNDLE), device, OPTIONS.taps)


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    return file


def trained(target, text, output, options=OPTIONS, stop_after=None, report=bool, **changes):
    """Trains until the limits, or until the user stops after some steps."""
    options = replace(options, **changes)
    steps = []
    stopping = (lambda: bool(steps) and steps[-1] >= stop_after) if stop_after else bool

    def note(status):
        steps.append(status.progress.steps)
        report(status)

    output.mkdir(exist_ok=True)
    write = TargetWriter(target, options.window).write if options.generate else None
    texts = texts_of([text] if text else [], target.tokenizer, options.window, write)
    training = Training(target, texts, options, output, note, stopping)
    training.run()
    return training


@pytest.mark.parametrize("kind", NEW)
def test_a_stopped_training_goes_on_as_if_it_had_not_stopped(target, text, tmp_path, kind):
    whole = trained(target, text, tmp_path / "whole", tokens=1500, kind=kind)
    stopped = trained(target, text, tmp_path / "stopped", tokens=1500, stop_after=5, kind=kind)
    assert stopped.progress.steps == 5
    resumed = trained(target, text, tmp_path / "stopped", tokens=1500, kind=kind)
    assert resumed.progress.steps == whole.progress.steps == 12
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "stopped"))
    for name, each in one.items():
        np.testing.assert_allclose(each, other[name], rtol=0, atol=1e-6, err_msg=name)


@with_library
@pytest.mark.parametrize("kind", NEW)
def test_the_loss_falls_and_the_head_drafts_what_plain_decoding_says(target, text, tmp_path, kind):
    changes = {"kind": kind, "learning_rate": 2e-3}
    begun = trained(target, text, tmp_path / "head", tokens=128, **changes)
    first = begun.progress.loss
    done = trained(target, text, tmp_path / "head", tokens=6000, **changes)
    assert done.progress.loss < 0.8 * first
    export.make(BUNDLE, tmp_path / "bundle", tmp_path / "head")
    with LLM(tmp_path / "bundle", draft="head", threads=1) as llm:
        prompt = TEXT[: len(TEXT) // 9]
        plain = llm.generate(prompt, draft_source="none", max_new_tokens=30)
        drafted = cheapen(llm).generate(prompt, max_new_tokens=30)
    assert drafted.tokens == plain.tokens
    assert drafted.accepted > 0


@with_library
def test_the_head_of_a_model_is_trained_further(tmp_path):
    """Of a random Qwen3.5, whose recurrent layers and vocabulary are its own."""
    model = make_checkpoint(tmp_path / "model", "qwen3_5_text")
    write_mtp(tmp_path / "model", model.config)
    export.make(tmp_path / "model", tmp_path / "plain", "none", ExportOptions("fp32"))
    bundle = bundles.load(tmp_path / "plain")
    device = TorchDevice(torch.device("cpu"), torch.float32, 1 << 30)
    given = {"kind": MTP, "init": str(tmp_path / "model")}
    options = replace(OPTIONS, taps=None, steps=2, learning_rate=2e-3, **given)
    options = GivenHead(tmp_path / "model", bundle).chosen(options)
    own = TorchTarget(bundle, device, options.tapped(bundle.target.layers))
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    first = trained(own, text, tmp_path / "head", options, tokens=128).progress
    done = trained(own, text, tmp_path / "head", options, tokens=4000).progress
    assert done.loss < first.loss
    assert done.acceptance[0] > first.acceptance[0] + 0.1
    again = GivenHead(tmp_path / "head", bundle)
    assert (again.kind, again.head.taps) == (MTP, (bundle.target.layers,))
    export.make(tmp_path / "plain", tmp_path / "bundle", tmp_path / "head")
    with LLM(tmp_path / "bundle", draft="head", threads=1) as llm:
        prompt = TEXT[: len(TEXT) // 9]
        plain = llm.generate(prompt, draft_source="none", max_new_tokens=30)
        drafted = cheapen(llm).generate(prompt, max_new_tokens=30)
    assert drafted.tokens == plain.tokens


@pytest.mark.parametrize("kind", [DFLASH, DSPARK])
def test_the_saved_layout_of_blocks_is_that_of_speculators(target, text, tmp_path, kind):
    trained(target, text, tmp_path / "head", tokens=128, kind=kind)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    spark = kind == DSPARK
    wanted = {
        "architectures": ["DSparkSpeculator" if spark else "DFlashSpeculator"],
        "speculators_model_type": kind,
        "draft_vocab_size": 256,
        "block_size": 3 if spark else 4,
        "aux_hidden_state_layer_ids": [2, 4, 6],
        "sample_from_anchor": spark,
    }
    if spark:
        wanted |= {
            "markov_rank": 128,
            "markov_head_type": "vanilla",
            "enable_confidence_head": True,
            "confidence_head_with_markov": True,
        }
    assert {name: config[name] for name in wanted} == wanted
    assert config["transformer_layer_config"]["num_hidden_layers"] == 3
    assert 0 <= config["mask_token_id"] < 4096
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    heads = 4 * 64
    kv = 2 * 64
    h = 256
    inner = 64
    layer = {
        "input_layernorm": (h,),
        "post_attention_layernorm": (h,),
        "self_attn.q_norm": (64,),
        "self_attn.k_norm": (64,),
        "self_attn.q_proj": (heads, h),
        "self_attn.k_proj": (kv, h),
        "self_attn.v_proj": (kv, h),
        "self_attn.o_proj": (h, heads),
        "mlp.gate_proj": (inner, h),
        "mlp.up_proj": (inner, h),
        "mlp.down_proj": (h, inner),
    }
    shapes = {"fc": (h, 3 * h), "hidden_norm": (h,), "norm": (h,), "lm_head": (256, h)}
    shapes |= {f"layers.{n}.{name}": shape for n in range(3) for name, shape in layer.items()}
    if spark:
        shapes |= {
            "markov_head.markov_w1": (4096, 128),
            "markov_head.markov_w2": (256, 128),
            "confidence_head.proj": (1, h + 128),
        }
    shapes = {f"{name}.weight": shape for name, shape in shapes.items()}
    if spark:
        shapes["confidence_head.proj.bias"] = (1,)
    found = {name: each.shape for name, each in tensors.items()}
    assert found.pop("d2t") == (256,)
    assert found.pop("t2d") == (4096,)
    assert found == shapes


def test_the_saved_layout_is_that_of_eagle_and_other_options_do_not_go_on(target, text, tmp_path):
    trained(target, text, tmp_path / "head", tokens=128, kind=GATED)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    wanted = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "edgespec_fusion": "gated",
        "draft_vocab_size": 256,
        "rope_theta": pytest.approx(10_000, rel=1e-3),
        "eagle_aux_hidden_state_layer_ids": [2, 4, 6],
    }
    assert {name: config[name] for name in wanted} == wanted
    assert config["edgespec"]["target"] == bundles.load(BUNDLE).digest
    assert config["edgespec"]["tokens"] == 128
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    heads = 4 * 64
    kv = 2 * 64
    h = 256
    inner = 64
    layer = {
        "input_layernorm": (h,),
        "hidden_norm": (h,),
        "post_attention_layernorm": (h,),
        "fusion_gate": (h, 2 * h),
        "self_attn.q_proj": (heads, h),
        "self_attn.k_proj": (kv, h),
        "self_attn.v_proj": (kv, h),
        "self_attn.o_proj": (h, heads),
        "mlp.gate_proj": (inner, h),
        "mlp.up_proj": (inner, h),
        "mlp.down_proj": (h, inner),
    }
    shapes = {"fc": (h, 3 * h), "norm": (h,), "lm_head": (256, h)}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    found = {name: (each.shape, str(each.dtype)) for name, each in tensors.items()}
    assert found.pop("d2t") == ((256,), "int64")
    assert found.pop("t2d") == ((4096,), "bool")
    assert found == {f"{name}.weight": (shape, "float16") for name, shape in shapes.items()}
    ids = np.arange(256) + tensors["d2t"]
    assert np.flatnonzero(tensors["t2d"]).tolist() == ids.tolist()
    rows = TargetGraph(bundles.load(BUNDLE)).projection.rows(ids)
    np.testing.assert_array_equal(tensors["lm_head.weight"], rows.astype(np.float16))
    with pytest.raises(InputError, match=r"begun with window 64, not 32: give the same options"):
        trained(target, text, tmp_path / "head", tokens=128, kind=GATED, window=32)


def test_a_head_has_the_layout_of_speculators_and_a_card(target, text, tmp_path, monkeypatch):
    """As vLLM reads it; what the definition makes of it is in `test_eagle3_training.py`."""
    # So that it is no speed of three decimals, as that of plain decoding is.
    monkeypatch.setattr(
        "edgespec.training.training.promised_speedup",
        lambda *given: promised_speedup(*given) + 1 / 7,
    )
    head = tmp_path / "head"
    told = []
    training = trained(
        target, text, head, tokens=300, report=lambda status: told.append(status.promised)
    )
    config = json.loads((head / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["architectures"] == ["Eagle3DraftModel"]
    assert config["norm_before_residual"] is False
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 6]
    [method] = config["speculators_config"]["proposal_methods"]
    assert method["speculative_tokens"] == 3
    verifier = config["speculators_config"]["verifier"]
    facts = config["edgespec"]
    assert verifier["name_or_path"] == facts["base_model"]
    assert facts["acceptance"] == [round(each, 4) for each in training.progress.acceptance]
    assert facts["promised_by_kind"].keys() == facts["acceptance_by_kind"].keys()
    [of_kind] = facts["promised_by_kind"].values()  # all texts are of one
    assert of_kind == facts["promised_speedup"] == round(told[-1], 3) > 1
    assert told[0] is None
    assert told[-1] != facts["promised_speedup"]
    card = (head / "README.md").read_text("utf-8")
    assert card.startswith("---\nlicense: other\ntags:\n- speculative-decoding")
    for part in (facts["base_model"], facts["weights"], "given texts, as they are", "| all |"):
        assert part in card
    assert "base_model: own" in training_card(
        {**config, "edgespec": {**facts, "base_model": "own/m"}}
    )


@pytest.mark.parametrize("kind", NEW)
def test_a_training_goes_on_with_a_given_head(target, text, tmp_path, kind):
    """Its kind, tokens and sizes are kept, whatever the other options say."""
    trained(target, text, tmp_path / "given", tokens=300, kind=kind)
    given = GivenHead(tmp_path / "given", target.bundle)
    options = given.chosen(replace(OPTIONS, steps=None, taps=None, draft_vocabulary=9))
    assert (options.kind, options.taps, options.depths) == (
        kind,
        OPTIONS.taps,
        3 if options.at_once else 4,
    )
    other = replace(options, init=str(tmp_path / "given"), tokens=128, intermediate_size=8)
    trained(target, text, tmp_path / "head", other)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("given", "head"))
    assert before.keys() == after.keys()
    for name, each in before.items():  # one small step later
        np.testing.assert_allclose(after[name], each, atol=1e-3, rtol=2e-3, err_msg=name)
    wrong = DFLASH if kind == DSPARK else DSPARK
    with pytest.raises(InputError, match=f"is of kind {kind}: leave out --kind {wrong}"):
        given.chosen(replace(OPTIONS, kind=wrong))


def test_a_head_that_training_does_not_know_is_refused(target, text, tmp_path):
    trained(target, text, tmp_path / "given", tokens=128)
    file = tmp_path / "given" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "norm_before_residual": True}))
    options = replace(OPTIONS, init=str(tmp_path / "given"))
    with pytest.raises(InputError, match=r"has its norms in another place, which training can't"):
        trained(target, text, tmp_path / "head", options)


@pytest.mark.parametrize(
    ("kind", "changed", "reason"),
    [
        (EAGLE3, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "scales its rotary"),
        (DFLASH, {"sample_from_anchor": True}, "predicts other positions"),
    ],
)
def test_a_head_with_what_training_would_forget_is_refused(
    target, text, tmp_path, kind, changed, reason
):
    trained(target, text, tmp_path / "given", tokens=128, kind=kind)
    file = tmp_path / "given" / "config.json"
    config = json.loads(file.read_text())
    inner = "transformer_layer_config"
    part = config[inner] if "rope_scaling" in changed and inner in config else config
    part.update(changed)
    file.write_text(json.dumps(config))
    options = replace(OPTIONS, kind=kind, init=str(tmp_path / "given"))
    with pytest.raises(InputError, match=reason):
        trained(target, text, tmp_path / "head", options)
    assert not list((tmp_path / "head").rglob("*.npz"))  # before texts are read


def test_a_head_of_another_target_is_refused_before_anything_is_made(target, text, tmp_path):
    head = tmp_path / "head"
    trained(target, text, head, tokens=128)
    export.make(BUNDLE, tmp_path / "bundle", head)
    assert bundles.load(tmp_path / "bundle").draft.is_head
    config = json.loads((head / "config.json").read_text())
    config["edgespec"] |= {"weights": "0123456789abcdef", "base_model": "owner/other"}
    (head / "config.json").write_text(json.dumps(config))
    for other in (BUNDLE, ROOT / "models/embedded/checkpoints/python-7m"):
        with pytest.raises(
            CheckpointError, match="trained for owner/other, whose weights are 0123"
        ):
            export.make(other, tmp_path / "other", head)
        assert not (tmp_path / "other").exists()


def test_a_loss_that_is_not_finite_ends_the_training_and_keeps_the_head(target, text, tmp_path):
    trained(target, text, tmp_path / "head", tokens=256)
    before = load_file(tmp_path / "head" / "model.safetensors")
    state = tmp_path / "head" / WORK / "state.safetensors"
    with safe_open(state, "np") as stored:
        facts = stored.metadata()
    tensors = load_file(state)
    tensors["head.fc.weight"].fill(np.nan)
    save_file(tensors, state, facts)
    with pytest.raises(InputError, match=r"the loss is nan after 2 steps: give a smaller --lear"):
        trained(target, text, tmp_path / "head", tokens=1000)
    after = load_file(tmp_path / "head" / "model.safetensors")
    for name, each in before.items():
        np.testing.assert_array_equal(each, after[name])


@pytest.mark.parametrize("disk", [0, 64 << 20])
def test_the_target_answers_prompts(target, tmp_path, disk):
    """Features that find no room on disk are read again, and the head is the same."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"def add_{n}("} for n in range(6)] + [{"turns": ["class A:\n"]}]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    options = replace(OPTIONS, generate=True, tokens=600, disk=disk)
    done = trained(target, prompts, tmp_path / "head", options)
    assert done.progress.tokens >= 600
    assert list(done.progress.kinds) == ["prompts"]
    assert any((tmp_path / "head" / WORK / "shards").rglob("*.npy")) == bool(disk)
    again = trained(target, prompts, tmp_path / "head", options)
    assert again.progress == done.progress


def test_when_the_time_for_writing_is_over_the_texts_are_trained_on_again(
    target, text, tmp_path, monkeypatch
):
    device = replace(target.device, shard_tokens=4 * OPTIONS.window)
    monkeypatch.setattr(target, "device", device)
    monkeypatch.setattr(Training, "_written", lambda own: own.progress.shard == 2)
    done = trained(target, text, tmp_path / "head", tokens=2000)
    assert done.progress.shards == 2
    assert done.progress.epoch >= 3
    names = {each.stem for each in (tmp_path / "head" / WORK / "shards").glob("*.npz")}
    assert names == {"0", "1", "2"}


@pytest.fixture
def slow(target, monkeypatch):
    """A target that needs ten seconds a token that it writes and fifteen a text that it reads."""
    passed = [0.0]
    forward, read = target.forward, TargetReader.read

    def clock():
        passed[0] += 1e-6
        return passed[0]

    def writing(tokens, texts):
        passed[0] += 10 * (tokens.shape[1] == 1)
        return forward(tokens, texts)

    def reading(own, texts):
        passed[0] += 15 * len(texts)
        return read(own, texts)

    monkeypatch.setattr(target, "forward", writing)
    monkeypatch.setattr(TargetReader, "read", reading)
    for module in ("training", "preparation"):
        monkeypatch.setattr(f"edgespec.training.{module}.time", SimpleNamespace(monotonic=clock))
    return passed


def counts(head):
    """Returns how many texts of a head's held-out and first shard are stored, as were read."""
    shards = Shards(head / WORK / "shards", OPTIONS.disk)
    found = [len(shards.get(number) or ()) for number in (HELD_OUT, FIRST)]
    stored = [shards.texts(number) for number in (HELD_OUT, FIRST)]
    assert [(len(texts), read) for texts, read in stored] == [(each, each) for each in found]
    return found


@pytest.mark.parametrize("generate", [False, True])
def test_a_slow_target_prepares_no_longer_than_the_minutes(target, text, tmp_path, slow, generate):
    """A step takes no time here, so that tokens end it."""
    options = replace(OPTIONS, generate=generate, minutes=10, tokens=600)
    done = trained(target, text, tmp_path / "head", options)
    assert slow[0] < 0.5 * 10 * 60
    assert done.progress.tokens >= 600
    assert done.progress.acceptance
    before = counts(tmp_path / "head")
    if generate:
        assert before[0] < 3
    else:  # no read is for timing alone
        assert slow[0] == pytest.approx(15 * sum(before), abs=1)
    more = trained(target, text, tmp_path / "head", options, minutes=200, tokens=900)
    assert more.progress.tokens >= 900
    assert counts(tmp_path / "head") == [3, before[1]]  # what nothing was trained on is complete


def test_minutes_without_a_step_are_told_with_what_to_do(target, text, tmp_path, slow):
    with pytest.raises(InputError, match=r"minutes is 0.1, which were over before the first step"):
        trained(target, text, tmp_path / "head", minutes=0.1)
    assert counts(tmp_path / "head")[FIRST] == 0
    assert not (tmp_path / "head" / "config.json").exists()
    assert not (tmp_path / "head" / WORK / "state.safetensors").exists()
    trained(target, text, tmp_path / "head", tokens=300)
    trained(target, text, tmp_path / "whole", tokens=300)
    assert counts(tmp_path / "head") == counts(tmp_path / "whole")


@pytest.mark.parametrize("disk", [0, 64 << 20])
def test_texts_of_a_stopped_reading_are_read_within_the_minutes(target, text, tmp_path, slow, disk):
    trained(target, text, tmp_path / "whole", tokens=300)
    options = replace(OPTIONS, disk=disk, tokens=300)
    with pytest.raises(KeyboardInterrupt):
        trained(target, text, tmp_path / "head", options, report=interrupt_at("reading"))
    began = slow[0]
    trained(target, text, tmp_path / "head", options, minutes=11)
    shards = Shards(tmp_path / "head" / WORK / "shards", disk)
    texts, read = shards.texts(FIRST)
    assert 0 < len(texts) == read < counts(tmp_path / "whole")[FIRST]
    assert slow[0] - began < 11 * 60
    if not disk:  # what was trained on is read as a whole, however little time is left
        began = slow[0]
        trained(target, text, tmp_path / "head", options, minutes=1)
        assert slow[0] - began > 15 * read


def interrupt_at(doing):
    """Returns a report that interrupts a training which does this."""

    def report(status):
        if status.doing.startswith(doing):
            raise KeyboardInterrupt

    return report


def test_a_training_that_is_stopped_before_a_step_leaves_no_head(target, text, tmp_path):
    for stops in ({"report": interrupt_at("reading 3/3")}, {"stop_after": -1}):
        with pytest.raises(KeyboardInterrupt):
            trained(target, text, tmp_path / "head", **stops)
        assert {each.name for each in (tmp_path / "head").iterdir()} == {WORK}
    assert counts(tmp_path / "head")[HELD_OUT] == 3


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.txt", b" \n", "is empty: give a text"),
        ("binary.txt", b"\xff\xfe\x00", "byte 0 is not UTF-8: give the training text as UTF-8"),
        ("short.txt", b"def add(a, b):", "tokens: give at least 12"),
        ("prompts.jsonl", b'{"prompt": "x"}', "holds prompts: leave out --no-generate"),
    ],
)
def test_texts_that_cannot_be_trained_on(target, tmp_path, name, content, message):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        texts_of([file], target.tokenizer, 64, None)


@pytest.mark.parametrize(
    "line", ["{", '{"text": "x"}', '{"prompt": ""}', '{"turns": []}', "[1]", '{"prompt": 3}']
)
def test_prompts_that_cannot_be_read(target, tmp_path, line):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "def f("}\n' + line + "\n")
    with pytest.raises(InputError, match=r"prompts.jsonl: line 2"):
        texts_of([file], target.tokenizer, 64, lambda *_: [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 4}, "window is 4: give a whole number of at least 16"),
        ({"steps": 80}, "window is 64: give more than 81 tokens"),
        (
            {"kind": "medusa"},
            "kind is 'medusa': use one of eagle3, eagle3-gated, peagle, dflash",
        ),
        ({"kind": DFLASH, "steps": 17}, "steps is 17: give at most 16 for tokens of one call"),
        ({"kind": MTP}, "kind is mtp: give the model's own checkpoint, which has it, by --init"),
        ({"minutes": 0}, "minutes is 0: give a number above 0"),
        ({"tokens": 0}, "tokens is 0: give a whole number"),
        ({"device": "gpu"}, "device is 'gpu': use one of cuda, xpu, mps, cpu"),
    ],
)
def test_options_out_of_range(target, text, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        trained(target, text, tmp_path / "head", **changes)


def test_the_command_ends_with_its_result_where_nothing_is_drafted(cli, text, tmp_path):
    """Of a bundle without a draft model, when the target is closed already."""
    for size in ("300", "600"):  # the second run goes on
        options = ("--no-generate", "--tokens", size, "--window", "64", "--threads", "1")
        told = cli("train-draft", BUNDLE, "--text", text, "-o", tmp_path / "head", *options)
        assert told.code == 0, told.err
        assert json.loads(told.out)["tokens"] >= int(size)
