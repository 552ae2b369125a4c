"""Memory that users allow: how it is written, what `edgespec plan` says of it, texts under it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest
from commandline import FAST, PLACE, PROMPT, fails
from cuts import EMBEDDED
from pairs import LONG_PROMPT
from plans import TERMS, total

from edgespec import LLM
from edgespec.bundle import DRAFT, TARGET
from edgespec.errors import InputError, MemoryLimitError
from edgespec.runtime.deployment.demands import MIB
from edgespec.runtime.deployment.deployment import deploy, texts_with_room
from edgespec.runtime.deployment.options import LoadOptions, parse_size
from edgespec.runtime.engines import CPU_ENGINES, engine
from edgespec.system import control_groups

# Sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GiB", 2 << 30), ("900MB", 900 * 10**6), ("1.5G", 3 << 29), ("1 TB", 10**12),
        ("64k", 64 << 10), ("10mib", 10 << 20),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text) == size
    assert LoadOptions(memory=text).memory == LoadOptions(memory=size).memory == size


@pytest.mark.parametrize(
    "text", ["", "2", "GiB", "-1GB", "2 GiB free", "1e3MB", "0GB", "∞GB", "2PB", f"{'9' * 400}GiB"]
)
def test_sizes_that_are_refused(text):
    with pytest.raises(InputError, match="size"):
        parse_size(text)


@pytest.mark.parametrize("size", [0, -5, 1.5, True, 1 << 63])
def test_memory_is_a_whole_number_of_bytes(size):
    with pytest.raises(InputError, match=r"^memory (of cpu )?is"):
        LoadOptions(memory=size)


# The command line


def test_a_plan_as_json(cli):
    result = cli("plan", "--json", *FAST[:2], "--memory", "2GiB", "--context", 512)
    found = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert (found["fits"], found["context"], found["draft"]) == (True, 512, "model")
    assert found["max_tree"] == 63
    assert found["engines"] == {TARGET: "onnxruntime:cpu", DRAFT: "onnxruntime:cpu"}
    (device,) = found["devices"]
    assert device["device"] == "cpu"
    assert device["limit_mb"] == 2048
    assert device["total_mb"] == pytest.approx(sum(device[f"{term}_mb"] for term in TERMS))
    assert device.keys() == {"device", "total_mb", "limit_mb", "mapped_mb"} | {
        f"{term}_mb" for term in TERMS
    }


def test_a_plan_as_a_table(cli):
    result = cli("plan", "--draft", "none", "--memory", "1GB")
    assert result.code == 0
    for part in ("KV caches", "16.0", "953.7", "context of 2,048 tokens, draft none"):
        assert part in result.out


def test_a_plan_for_several_texts(cli):
    alone, three, four = (
        json.loads(cli("plan", "--json", *FAST[:2], "--parallel", n).out)["devices"][0]["kv_mb"]
        for n in (1, 3, 4)
    )
    # Caches of texts that share calls lie side by side in twos and fours.
    assert alone * 3 < three == four == pytest.approx(4 * alone, rel=0.01)


def limit_of(texts):
    """Returns options with memory for exactly so many texts."""
    options = LoadOptions(**PLACE, draft="model", context=2048)
    (demand,) = deploy(EMBEDDED, replace(options, sessions=texts)).devices
    return replace(options, memory=demand.total + MIB)


def test_as_many_texts_at_once_as_memory_has_room_for():
    assert [texts_with_room(EMBEDDED, limit_of(texts), 4) for texts in (1, 2, 3, 4)] == [1, 2, 4, 4]
    assert texts_with_room(EMBEDDED, limit_of(4), 1) == 1


def test_further_texts_do_not_cost_the_first_its_context():
    options = replace(limit_of(4), context=None, memory=limit_of(2).memory)
    assert texts_with_room(EMBEDDED, options, 4) == 2
    assert deploy(EMBEDDED, replace(options, sessions=4)).context < 2048


def test_texts_that_cannot_share_passes_take_turns():
    options = replace(limit_of(4), device=f"{CPU_ENGINES[0]}#8/32x1024", draft="none", context=None)
    assert texts_with_room(EMBEDDED, options, 4) == 1
    roles = {**EMBEDDED.manifest.roles, TARGET: replace(EMBEDDED.target, stages_of_texts=())}
    older = replace(EMBEDDED, manifest=replace(EMBEDDED.manifest, roles=roles))
    assert texts_with_room(older, limit_of(4), 4) == 1


def test_the_limit_is_what_is_free_unless_one_is_given(cli):
    (device,) = json.loads(cli("plan", "--json", *FAST[:2]).out)["devices"]
    free = engine("onnxruntime:cpu").available_bytes()
    assert device["limit_mb"] == pytest.approx(free / MIB, rel=0.2)


def test_what_control_groups_leave_is_a_limit(cli, monkeypatch):
    monkeypatch.setattr(control_groups, "free_bytes", lambda: 300 * MIB)
    (device,) = json.loads(cli("plan", "--json", *FAST[:2]).out)["devices"]
    assert device["limit_mb"] == 300
    monkeypatch.setattr(control_groups, "free_bytes", lambda: -MIB)  # beyond a soft limit
    fails(cli("run", PROMPT, *FAST[:2]), "0 may be used", code=3)


@pytest.mark.parametrize("command", [["plan"], ["run", PROMPT]])
def test_what_does_not_fit_is_refused_with_the_numbers(cli, command):
    result = cli(*command, *FAST[:2], "--memory", "30MiB")
    fails(result, "needs", "30 may be used", "repacked", "--memory", code=3)


def test_a_plan_that_does_not_fit_is_still_json(cli):
    result = cli("plan", "--json", *FAST[:2], "--memory", "30MiB")
    assert result.code == 3
    assert json.loads(result.out)["fits"] is False
    assert "30 may be used" in result.err


def test_bad_sizes_are_bad_input(cli):
    fails(cli("plan", "--memory", "2"), "'2'", "2GiB")
    fails(cli("run", PROMPT, "--memory", "lots"), "'lots'", "2GiB")
    fails(cli("plan", "--context", 4096), "context is 4096")


# What gives way


def test_what_gives_way_is_said_where_texts_may_miss_it():
    roles = {**EMBEDDED.manifest.roles, TARGET: replace(EMBEDDED.target, context_length=40960)}
    bundle = replace(EMBEDDED, manifest=replace(EMBEDDED.manifest, roles=roles))
    options = LoadOptions(device=CPU_ENGINES[0], draft="none", threads=1)
    usual, short = (
        total(deploy(bundle, replace(options, context=context, memory=1 << 40)))
        for context in (4096, 1024)
    )
    enough, too_little = (
        deploy(bundle, replace(options, memory=memory)) for memory in (usual + MIB, 1)
    )
    assert 4096 <= enough.context < 40960
    assert not too_little.fits
    assert enough.warnings == too_little.warnings == ()
    found = deploy(bundle, replace(options, memory=short))
    assert found.context < 4096
    said = f"a context of {found.context} instead of 40960 tokens, to fit {short // MIB} MiB on cpu"
    assert found.warnings == (said,)


def test_before_engines_are_measured_the_most_demanding_is_planned_for(own_cache):
    options = LoadOptions(draft="none", threads=1, memory=1 << 40, context=2048)
    open_ = deploy(EMBEDDED, options)
    each = {name: total(deploy(EMBEDDED, replace(options, device=name))) for name in CPU_ENGINES}
    assert open_.engines[TARGET] == (max(each, key=each.get),)


# Texts under a limit


def test_a_text_under_a_limit_is_the_same(pairs, caplog):
    path = pairs.pair("llama").path
    free = LLM(path, **PLACE)
    limit = total(LLM(path, **PLACE, draft="lookup").deployment) - MIB
    with caplog.at_level(logging.WARNING, "edgespec"):
        tight = LLM(path, **PLACE, memory=limit)
    assert (free.deployment.draft, free.deployment.prefill_chunk) == ("model", 64)
    assert tight.deployment.draft == "lookup"
    assert tight.deployment.prefill_chunk < 64
    assert total(tight.deployment) <= limit < total(free.deployment)
    (record,) = caplog.records
    assert record.getMessage().startswith("draft lookup instead of model")
    wanted = free.generate(LONG_PROMPT, max_new_tokens=32)
    assert wanted.prompt_tokens > 64
    assert tight.generate(LONG_PROMPT, max_new_tokens=32).tokens == wanted.tokens


def test_run_under_a_limit_gives_the_same_text(cli):
    words = ["run", PROMPT, "-n", 8, *FAST]
    wanted, found = cli(*words), cli(*words, "--memory", "60MiB")
    assert found.code == 0
    assert found.out == wanted.out
    assert "draft lookup instead of model" in found.err


def test_trees_stay_within_the_plan(caplog):
    """As large as fits, whatever a text asks for."""
    llm = LLM(**PLACE, draft="model", context=512)
    tight = LLM(**PLACE, draft="model", context=512, memory=total(llm.deployment) + MIB // 2)
    assert 7 <= tight.deployment.max_tree < llm.deployment.max_tree
    with caplog.at_level(logging.WARNING, "edgespec"):
        result = tight.generate(PROMPT, max_new_tokens=8, num_assistant_tokens=127)
    assert f"limited to {tight.deployment.max_tree} nodes" in caplog.text
    assert result.tokens == llm.generate(PROMPT, max_new_tokens=8).tokens


@pytest.mark.parametrize("draft", ["lookup", "model"])
def test_what_is_loaded_for_drafts_can_be_left_out(cli, draft):
    result = cli("plan", "--memory", "10MiB", "--draft", draft)
    assert result.code == 3
    assert ("--draft lookup" in result.err) == (draft == "model")


def test_a_context_asked_for_is_not_shortened():
    with pytest.raises(MemoryLimitError, match="context 2048") as caught:
        LLM(**PLACE, context=2048, draft="model", memory="60MiB")
    assert caught.value.exit_code == 3
    assert LLM(**PLACE, memory="60MiB").context_length <= 2048
