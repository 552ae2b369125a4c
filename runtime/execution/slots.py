"""Caches that outlive their texts, so a prompt that begins like one of those continues from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from edgespec.bundle import TARGET
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.execution.head_runner import new_runner
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner, common_beginning

_log = logging.getLogger(__name__)

_WORTH_COPYING = 16  # tokens; fewer rows are computed again in a call or two


class Slot:
    """The caches of one text in every model; a context manager for the time of the text.

    Attributes:
        owned: whether it belongs to a session; else any text may take it.
        kept: whether its caches outlive the text.
        runners: the text in each role's model. Empty if other texts needed the memory; the target's
            alone if the draft's device had no room.
        began: whether a text has begun, here or where the session was saved.
        busy: whether a text is in progress.
        closed: whether no text may begin any more.
    """

    def __init__(self, owned: bool, kept: bool) -> None:
        self.owned = owned
        self.kept = kept
        self.runners: dict[str, Runner] = {}
        self.began = False
        self.busy = False
        self.closed = False

    @property
    def tokens(self) -> Sequence[int]:
        """Tokens of its last text whose rows it still holds."""
        return self.runners[TARGET].tokens if self.runners else ()

    @property
    def bytes(self) -> int:
        """Size of its caches."""
        return sum(runner.bytes for runner in self.runners.values())

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End a text. Its caches are kept unless an error occurred; closing the text is none."""
        if not (kind in (None, GeneratorExit) and self.kept):
            self.runners = {}
        self.busy = False


class Slots:
    """All slots of the loaded models, within a memory budget.

    The least recently used slots are freed first.

    Args:
        models: models by role, the target among them.
        budget: bytes that the caches of all slots may take together. Texts in progress keep theirs
            even beyond it.
        shared: whether texts without a session also continue from what other texts have left.
    """

    def __init__(self, models: Mapping[str, Model], budget: int, shared: bool) -> None:
        self._models = models
        self._budget = budget
        self._shared = shared
        self._slots: list[Slot] = []  # the least recently used first

    def add(self) -> Slot:
        """Add a slot for a session."""
        self._slots.append(Slot(owned=True, kept=True))
        return self._slots[-1]

    def remove(self, slot: Slot) -> None:
        """Free the memory of a slot and close it."""
        if slot in self._slots:
            self._slots.remove(slot)
        slot.runners, slot.closed = {}, True

    def enter(self, slot: Slot | None, prompt: Sequence[int], length: int) -> Slot:
        """Prepare a slot for a text, with the cache rows of an earlier text that begins alike.

        Args:
            slot: slot of a session. If None and texts share slots, the one that holds most of the
                prompt is taken, if the prompt covers at least half of what it holds, or if it had
                to be freed for this text; else an empty one.
            prompt: token ids.
            length: largest length of prompt and output together.

        Raises:
            InputError: if the session's last text is in progress, or the session is closed.
        """
        if slot is not None and slot.closed:
            raise InputError("the session is closed: open another with LLM.session()")
        if slot is not None and slot.busy:
            raise InputError(
                "the session is generating a text: read that to its end, or open another session"
            )
        slot = slot or self._alike(prompt) or self._empty(prompt, length)
        self.make_ready(slot, length)
        self._slots = [*(each for each in self._slots if each is not slot), slot]
        if slot.kept:
            self._copy_beginning(slot, prompt)
        # Set last, so that a slot that could not be prepared stays free for another try.
        slot.began = slot.busy = True
        return slot

    def clear(self) -> None:
        """Free all memory and close all slots."""
        for slot in self._slots:
            slot.runners = {}
        self._slots, self._models = [], {}

    def make_ready(self, slot: Slot, length: int) -> Mapping[str, Runner]:
        """Returns the runners of a slot, after freeing room for a text of this length.

        Raises:
            DeviceError: if the target's device cannot allocate a cache. If the draft's cannot, the
                draft is left out.
            InputError: if all slots were cleared.
        """
        self._give_runners(slot)
        for each in self._in_the_way(slot, length):
            each.runners = {}
        return slot.runners

    def _give_runners(self, slot: Slot) -> None:
        """Give a slot the runners that it lacks; raises as `make_ready`."""
        if not self._models:
            raise InputError("the model was closed: load it again")
        runners = dict(slot.runners)
        for role, model in self._models.items():
            try:
                runners[role] = runners.get(role) or new_runner(model)
            except DeviceError as error:
                if role == TARGET:
                    raise
                _log.warning("%s: the text goes on without drafts by the %s model", error, role)
        slot.runners = runners

    def _alike(self, prompt: Sequence[int]) -> Slot | None:
        """Returns the idle slot without an owner that holds most of a prompt, and little else."""
        found, most = None, -1
        for slot in self._slots:
            shared = common_beginning(slot.tokens, prompt)
            if not (slot.owned or slot.busy) and 2 * shared >= len(slot.tokens) and shared > most:
                found, most = slot, shared
        return found

    def _empty(self, prompt: Sequence[int], length: int) -> Slot:
        """Returns an empty slot, or one that begins like the prompt and had to be freed for it."""
        empty = Slot(owned=False, kept=self._shared)
        if not self._shared:
            return empty
        self._give_runners(empty)
        most, found = _WORTH_COPYING - 1, empty
        for slot in self._in_the_way(empty, length):
            shared = common_beginning(slot.tokens, prompt)
            if not slot.owned and shared > most:
                most, found = shared, slot
        return found

    def _in_the_way(self, slot: Slot, length: int) -> list[Slot]:
        """Returns the idle slots to free so that a text of this length fits into the budget."""
        need = sum(each.bytes_for(length) for each in slot.runners.values())
        others = [each for each in self._slots if each is not slot and each.runners]
        taken, found = need + sum(each.bytes for each in others), []
        for each in others:
            if taken <= self._budget:
                break
            if not each.busy:
                taken -= each.bytes
                found.append(each)
        return found

    def _copy_beginning(self, slot: Slot, prompt: Sequence[int]) -> None:
        """Copy the rows that another slot holds of the prompt, if those are more."""
        known = [common_beginning(each.tokens, prompt) for each in self._slots]
        shared = max(known)
        if shared < known[-1] + _WORTH_COPYING:
            return
        other = self._slots[known.index(shared)]
        for role, source in other.runners.items():
            if role in slot.runners:
                try:
                    slot.runners[role].restore(source.snapshot(shared))
                except DeviceError:  # a draft that fails again is left out of the text
                    if role == TARGET:
                        raise
