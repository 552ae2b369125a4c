"""A draft model that goes on while the target works, as where it has a device of its own."""

from __future__ import annotations

import threading
import time

import pytest
from engines import SAMPLINGS, plain_engine, request, tokens_at_once, tokens_of, toy_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ToyGraph

from edgespec.errors import DeviceError
from edgespec.runtime.drafters.ahead import AheadGrower
from edgespec.runtime.drafters.levels import LevelGrower


class Timed(ToyGraph):
    """Calls take what they are said to cost, and are counted by the thread that makes them."""

    def __init__(self, model):
        super().__init__(model.graph.noise)
        self.cost = model.cost
        self.beside = 0

    def __call__(self, feeds):
        self.beside += threading.current_thread() is not threading.main_thread()
        time.sleep(self.cost.seconds(len(feeds["write"])))
        return super().__call__(feeds)


def engine_of(grower=AheadGrower, noise=0.3, target=(0.01, 0.0005), draft=(0.001, 0.0001), **how):
    """An engine, and the graph of its draft model."""
    engine = toy_engine(noise, target=target, draft=draft, grower=grower, **how)
    for model in (engine.target, engine.drafters[-1].model):
        model.graph = Timed(model)
    return engine, engine.drafters[-1].model.graph


def slots_left(engine):
    engine.forget()
    models = [engine.target, *(each.model for each in engine.drafters if each.name == "model")]
    return sum(model.pool.used for model in models)


@pytest.mark.parametrize("how", SAMPLINGS)
@pytest.mark.parametrize("limits", [{}, {"max_nodes": 3, "width": 1}, {"context": 70}], ids=str)
def test_tokens_are_those_of_plain_decoding(how, limits):
    engine, graph = engine_of(context=limits.get("context", 1000))
    asked = request(tuple(range(40)), draft="model", **how, **limits)
    rounds = list(engine.generate(asked))
    assert [token for made in rounds for token in made.tokens] == tokens_of(plain_engine(), asked)
    assert sum(made.begun for made in rounds) > 3
    assert graph.beside > 3
    assert slots_left(engine) == 0


@given(
    prompts=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 9)), min_size=2, max_size=4),
    data=st.data(),
)
@settings(max_examples=10)
def test_sequences_at_once_are_those_of_each_alone(prompts, data):
    engine, _ = engine_of(target=(0.002, 0.0), draft=(0.0001, 0.0))
    asked = [
        request(
            tuple(step * n % 50 for n in range(length)),
            data.draw(st.integers(1, 12)),
            stop={7},
            draft=data.draw(st.sampled_from(["model", "auto", "none"])),
            temperature=data.draw(st.sampled_from([0.0, 1.0])),
            seed=1,
        )
        for length, step in prompts
    ]
    assert tokens_at_once(engine, asked) == [tokens_of(plain_engine(), each) for each in asked]
    assert slots_left(engine) == 0


@pytest.mark.parametrize("failing", ["draft", "target"])
def test_what_fails_beside_the_other_leaves_nothing(failing):
    """A target that fails ends its text; a draft that fails on its thread drafts no more."""
    engine, graph = engine_of()
    call = Timed.__call__

    def fail(self, feeds):
        beside = threading.current_thread() is not threading.main_thread()
        if graph.beside and (beside if failing == "draft" else self is engine.target.graph):
            raise DeviceError("the device is gone")
        return call(self, feeds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timed, "__call__", fail)
        if failing == "draft":
            assert tokens_of(engine, request(draft="model")) == tokens_of(plain_engine(), request())
            assert [each.name for each in engine.drafters] == ["lookup"]
        else:
            with pytest.raises(DeviceError, match="gone"):
                tokens_of(engine, request(draft="model"))
    assert [each.name for each in threading.enumerate() if "draft" in each.name] == []
    assert tokens_of(engine, request(draft="model")) == tokens_of(plain_engine(), request())
    assert slots_left(engine) == 0


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_fewer_calls_hold_up_the_target(share):
    """`pytest -s` shows the gain in time where a call of the draft costs so much of a pass."""
    waits = []
    seconds = []
    for grower in (LevelGrower, AheadGrower):
        engine, graph = engine_of(grower, target=(0.03, 0.001), draft=(0.03 * share, 0.003 * share))
        begin = time.perf_counter()
        tokens_of(engine, request(n=60, draft="model"))
        seconds.append(time.perf_counter() - begin)
        waits.append(len(graph.calls) - graph.beside)
    print(f"\ndraft {share} of a pass: {seconds[0] / seconds[1]:.2f} times as fast")
    assert waits[1] < 0.7 * waits[0]
