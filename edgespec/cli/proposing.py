"""Asks somebody who named no model which one to talk to."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from edgespec.cli.terminal import tell
from edgespec.cli.waiting import waiting
from edgespec.errors import BundleError

if TYPE_CHECKING:
    from edgespec.store.store import StoredBundle

_MOST = 3
_NO = ("n", "no", "none", "q")
_YES = ("", "y", "yes")


class _Proposal(NamedTuple):
    """A model to talk to: its name, and what there is to tell of it."""

    name: str
    told: str


def chosen_model() -> str | None:
    """Asks at a terminal which model to talk to, one that is here or one to download.

    Returns:
        Its name; None if there is no terminal, nothing to propose, or none is wanted.
    """
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        return None
    proposals = _proposals()
    if not proposals:
        return None
    _show("no model is named; these suit this machine:")
    widest = max(len(each.name) for each in proposals)
    for number, each in enumerate(proposals, 1):
        _show(f"  {number}  {each.name:{widest}}  {each.told}")
    question = f"which one, 1 to {len(proposals)}? (Enter: 1; n: none, but a demonstration) "
    while True:
        tell(question, stream=sys.stderr, end="")
        line = sys.stdin.readline()
        answer = line.strip().lower()
        if not line or answer in _NO:
            return None
        if answer in _YES:
            return proposals[0].name
        names = {str(number): each.name for number, each in enumerate(proposals, 1)}
        names |= {each.name: each.name for each in proposals}
        if answer in names:
            return names[answer]


def _proposals() -> Sequence[_Proposal]:
    from edgespec.store.catalogue import Catalogue
    from edgespec.store.choosing import ModelChooser, gigabytes

    here = _ready()[:_MOST]
    found = [_Proposal(each.path.name, "is here") for each in here]
    if len(found) == _MOST:
        return found
    chooser = ModelChooser(Catalogue.read())
    called = [each.record.called for each in here]
    with waiting("memory is read"):
        for each in chooser.proposals():
            if each.entry.name not in called:
                rate = chooser.rate(each.entry, each.file)
                told = (
                    f"{gigabytes(each.size)} to download, {gigabytes(each.memory)} of memory, "
                    f"about {rate:.0f} tokens/s"
                )
                found.append(_Proposal(each.entry.name, told))
    return found[:_MOST]


def _ready() -> Sequence[StoredBundle]:
    """Returns models that are here and write texts, the newest first."""
    from edgespec import bundle as bundles
    from edgespec.store.store import BundleStore
    from edgespec.system.cachedir import cache_folder

    if cache_folder("models") is None:
        return ()
    found: list[tuple[float, StoredBundle]] = []
    for each in BundleStore().made().values():
        with suppress(BundleError):  # of another version, perhaps
            if bundles.load(each.path).target.writes:
                found.append((each.path.stat().st_mtime, each))
    return [made for _, made in sorted(found, key=lambda each: each[0], reverse=True)]


def _show(line: str) -> None:
    tell(line, stream=sys.stderr)
