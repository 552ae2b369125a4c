"""What a text is made from: its own part, and what all texts of a loaded bundle share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edgespec.api.chat import Conversation
from edgespec.api.pipelining import Pipelines
from edgespec.api.prompt_cache import PromptCache
from edgespec.runtime.decoding.fair_lock import FairLock
from edgespec.runtime.decoding.generate import Limits
from edgespec.runtime.decoding.rounds import Rounds
from edgespec.runtime.drafters import Drafter, Prediction, TreeBudget
from edgespec.runtime.execution.runner import Runner
from edgespec.runtime.execution.slots import Slot, Slots
from edgespec.runtime.sampling.sampler import Sampler
from edgespec.runtime.text.endings import TextEnd
from edgespec.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Shared:
    """What all texts of a loaded bundle share.

    Attributes:
        tokenizer: tokenizer of the target.
        pipeline: creates the pipeline from the target's runner and the drafter.
        rounds: makes the rounds of all texts.
        slots: all slots for caches.
        prompts: prompt cache on disk; None if there is none.
        lock: lock that is held while a text begins and while rounds are made.
    """

    tokenizer: Tokenizer
    pipeline: Pipelines
    rounds: Rounds
    slots: Slots
    prompts: PromptCache | None
    lock: FairLock


@dataclass(frozen=True)
class Job:
    """Everything one text needs.

    Attributes:
        shared: what it shares with the others.
        asked: its prompt, and what it may consist of.
        slot: slot of the text's session; None if it has no session.
        drafter: creates the drafter from the text's runners by role.
        sampler: chooses the tokens.
        limits: limits on the length of the text.
        budget: limits on the draft trees.
        end: what ends the text besides its tokens.
        logprobs: see `GenerationOptions`.
        prediction: text that was predicted, if drafts are taken from one.
        draft_memory: see `GenerationResult`.
    """

    shared: Shared
    asked: Conversation
    slot: Slot | None
    drafter: Callable[[Mapping[str, Runner]], Drafter]
    sampler: Sampler
    limits: Limits
    budget: TreeBudget
    end: TextEnd
    logprobs: int | None
    prediction: Prediction | None
    draft_memory: str | None
