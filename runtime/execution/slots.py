"""Caches that outlive their texts: a prompt that begins as one of those did goes on from there."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from edgespec.bundle import TARGET
from edgespec.errors import DeviceError, InputError
from edgespec.runtime.execution.model import Model
from edgespec.runtime.execution.runner import Runner, common_beginning

_log = logging.getLogger(__name__)

_WORTH_COPYING = 16  # tokens: the rows of fewer are computed in a call or two


class Slot:
    """The caches of one text, in every model; a context manager for the text's time.

    Attributes:
        owned: by a session; else any text may take it.
        kept: its caches outlive the text.
        runners: the text in each role's model; none where their memory was wanted by others, the
            target's alone where the draft's device had no room.
        began: a text has, here or where it was saved.
        busy: a text is being made in it.
        closed: nobody may make a text in it any more.
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
        """What it holds of its last text."""
        return self.runners[TARGET].tokens if self.runners else ()

    @property
    def bytes(self) -> int:
        """Of its caches."""
        return sum(runner.bytes for runner in self.runners.values())

    def __enter__(self) -> Slot:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """A text is over. Its caches can be trusted if nothing failed: closing it is no failure."""
        if not (kind in (None, GeneratorExit) and self.kept):
            self.runners = {}
        self.busy = False


class Slots:
    """All slots of loaded models, within a budget of memory: the least recently used give way.

    Args:
        models: by role, the target among them.
        budget: bytes that the caches of all slots may take together. Texts under way keep theirs
            whatever it says.
        shared: whether texts without a session, too, go on from what others have left.
    """

    def __init__(self, models: Mapping[str, Model], budget: int, shared: bool) -> None:
        self._models = models
        self._budget = budget
        self._shared = shared
        self._slots: list[Slot] = []  # the least recently used first

    def add(self) -> Slot:
        """A slot of its own for a session."""
        self._slots.append(Slot(owned=True, kept=True))
        return self._slots[-1]

    def remove(self, slot: Slot) -> None:
        """Give the memory of a slot back, for good."""
        if slot in self._slots:
            self._slots.remove(slot)
        slot.runners, slot.closed = {}, True

    def enter(self, slot: Slot | None, prompt: Sequence[int], length: int) -> Slot:
        """Make a slot ready for a text, with what is known of how the text begins.

        Args:
            slot: a session's; None: where texts share, the one that holds the most of the prompt,
                if that is at least half of what it holds; else an empty one.
            prompt: token ids.
            length: that prompt and output may reach.

        Raises:
            InputError: if the session's last text is not over, or the session is.
        """
        if slot is not None and slot.closed:
            raise InputError("the session is closed: open another with LLM.session()")
        if slot is not None and slot.busy:
            raise InputError(
                "the session is making a text: read that to its end, or open another session"
            )
        slot = slot or self._alike(prompt) or Slot(owned=False, kept=self._shared)
        self.make_ready(slot, length)
        self._slots = [*(each for each in self._slots if each is not slot), slot]
        if slot.kept:
            self._copy_beginning(slot, prompt)
        # Not before: what could not be made ready is free for another try.
        slot.began = slot.busy = True
        return slot

    def clear(self) -> None:
        """Give all memory back, for good."""
        for slot in self._slots:
            slot.runners = {}
        self._slots, self._models = [], {}

    def make_ready(self, slot: Slot, length: int) -> Mapping[str, Runner]:
        """The runners of a slot, after others made room for a text of this length.

        Raises:
            DeviceError: if the target's device gives no cache; without one the draft is left out.
            InputError: if all slots were cleared.
        """
        if not self._models:
            raise InputError("the model was closed: load it again")
        runners = dict(slot.runners)
        for role, model in self._models.items():
            try:
                runners[role] = runners.get(role) or Runner(model)
            except DeviceError as error:
                if role == TARGET:
                    raise
                _log.warning("%s: the text goes on without drafts by the %s model", error, role)
        slot.runners = runners
        self._make_room(slot, length)
        return slot.runners

    def _alike(self, prompt: Sequence[int]) -> Slot | None:
        """The idle slot without an owner that holds most of a prompt, and little besides."""
        found, most = None, -1
        for slot in self._slots:
            shared = common_beginning(slot.tokens, prompt)
            if not (slot.owned or slot.busy) and 2 * shared >= len(slot.tokens) and shared > most:
                found, most = slot, shared
        return found

    def _make_room(self, slot: Slot, length: int) -> None:
        """Forget idle slots until what a text of this length takes is left of the budget."""
        need = sum(each.bytes_for(length) for each in slot.runners.values())
        others = [each for each in self._slots if each is not slot and each.runners]
        taken = need + sum(each.bytes for each in others)
        for each in others:
            if taken <= self._budget:
                break
            if not each.busy:
                taken -= each.bytes
                each.runners = {}

    def _copy_beginning(self, slot: Slot, prompt: Sequence[int]) -> None:
        """Take over what another slot knows of the prompt, if that is more. Ours is the last."""
        known = [common_beginning(each.tokens, prompt) for each in self._slots]
        shared = max(known)
        if shared < known[-1] + _WORTH_COPYING:
            return
        other = self._slots[known.index(shared)]
        for role, source in other.runners.items():
            if role in slot.runners:
                rows = min(shared, source.length)
                try:
                    slot.runners[role].restore(source.tokens[:rows], source.snapshot(rows))
                except DeviceError:  # of a draft's it costs drafts, if it fails once more
                    if role == TARGET:
                        raise
