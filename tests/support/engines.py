"""Engines over toy models, with costs that are given instead of measured."""

from __future__ import annotations

import numpy as np
from toys import VOCABULARY, toy_model

from edgespec.runtime.drafters.levels import LevelGrower
from edgespec.runtime.drafters.lookup import LookupDrafter
from edgespec.runtime.drafters.model import ModelDrafter
from edgespec.runtime.drafters.reader import ModelReader
from edgespec.runtime.sampling.options import SamplingOptions
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.speculation.engine import Engine
from edgespec.runtime.speculation.generation import Limits, Request

# Ways to choose tokens that drafts must not change: greedy, sampled, and with penalties.
SAMPLINGS = [{}, {"temperature": 1.0, "seed": 5}, {"repetition_penalty": 1.4}]


def by_model(model, context=1000, grower=LevelGrower):
    """What drafts with a model of the target's vocabulary."""
    return ModelDrafter(grower("model", ModelReader(model, context)))


def toy_engine(
    noise=0.3, *, target=(1.0, 0.05), draft=(0.1, 0.01), context=1000, grower=LevelGrower
):
    drafter = by_model(toy_model(noise, cost=draft), context, grower)
    return Engine(toy_model(cost=target), [LookupDrafter(), drafter])


def engine_of(*drafters, target=(1.0, 0.05)):
    return Engine(toy_model(cost=target), drafters)


def plain_engine():
    return Engine(toy_model())


def request(prompt=(1, 2, 3), n=40, *, draft="auto", stop=(), context=1000, **options):
    how = {name: options.pop(name) for name in ("max_nodes", "width") if name in options}
    others = {"grammar", "logprobs", "prediction"} & options.keys()
    rest = {name: options.pop(name) for name in others}
    sampler = Sampler(SamplingOptions(**options), VOCABULARY)
    return Request(prompt, sampler, Limits(n, context, frozenset(stop), **how), draft, **rest)


def tokens_of(engine, asked):
    return [token for made in engine.generate(asked) for token in made.tokens]


def tokens_at_once(engine, asked):
    """The new tokens of each request, which begin one after the other and share passes."""
    made = []
    waiting = list(asked)
    while waiting or engine.running:
        if waiting:
            made.append(engine.add(waiting.pop(0)))
        engine.step()
    return [each.tokens[len(of.prompt) :] for each, of in zip(made, asked, strict=True)]


def on_last_tokens(count):
    """A toy's logits that depend on as many last tokens alone, so that sequences repeat."""

    def logits(tokens):
        seed = [int(token) for token in tokens[-count:]]
        return 3 * np.random.default_rng(seed).standard_normal(VOCABULARY + 3)

    return logits
