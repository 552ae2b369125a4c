"""The model that a command is to use, its name for clients, and its first pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgespec.cli.arguments import given as values_of
from edgespec.cli.waiting import notice, waiting
from edgespec.errors import EdgespecError
from edgespec.llm.load.options import LoadOptions

_USUAL = "qwen3.5:0.8b"  # what anybody can get, and any machine can run
_SHOWN = 5  # models that are named

if TYPE_CHECKING:
    import argparse

    from edgespec.llm.llm import LLM


def chosen(arguments: argparse.Namespace, fetch: bool = True) -> Path:
    """Returns the folder of the bundle that is to be used, which is made if the model is none.

    A draft model among the options is in that bundle, and its option becomes auto.

    Args:
        arguments: those of the command, with the model.
        fetch: whether models may be downloaded, which nobody expects of a command that only looks.

    Raises:
        EdgespecError: as `edgespec.store.making.bundle_of`.
    """
    from edgespec.store.making import bundle_of

    draft = getattr(arguments, "draft", None)
    draft = LoadOptions(draft=draft).draft_model if isinstance(draft, str) else None
    if draft is not None:
        arguments.draft = "auto"
    return bundle_of(arguments.model, draft, say=_say, fetch=fetch)


@contextmanager
def loaded(given: argparse.Namespace, bundle: Path | None = None, **options: Any) -> Iterator[LLM]:
    """Loads the model that is to be used, and keeps in the end what its drafts have learned.

    Args:
        given: arguments with the model, and with options of loading it.
        bundle: the model's folder, if it was found already.
        options: further ones, which go before those.
    """
    with waiting("the model is loaded"):
        from edgespec.llm.llm import LLM

        found = bundle or chosen(given)
    with waiting("the model is loaded"):  # again: a bar may have taken the line's place
        llm = LLM(found, **{**values_of(given, LoadOptions), **options})
    with llm:
        yield llm
        if llm.options.draft_memory is not None:
            llm.save_draft_memory(llm.options.draft_memory)


def name_demonstration(arguments: argparse.Namespace, llm: LLM) -> None:
    """Says what is used if no model is given."""
    if arguments.model is None:
        from edgespec.store.making import bundle_name

        _say(
            f"no model is given: this is {bundle_name(llm.bundle)}, a demonstration that knows a "
            f"little Python and nothing else; {_others()}"
        )


def _others() -> str:
    """Returns what to use instead of the demonstration: models that are ready, or one to get."""
    from edgespec.store.store import BundleStore
    from edgespec.system.cachedir import cache_folder

    names = [] if cache_folder("models") is None else [*BundleStore().made()]
    if not names:
        own = "give a model, as in `edgespec chat model.gguf`"
        return f"{own}, or get one: `edgespec chat {_USUAL}`"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more} can be used, as in `edgespec chat {names[0]}`"


def _say(line: str) -> None:
    notice(f"edgespec: {line}")


def warm_up_aside(llm: LLM) -> None:
    """Has a thread of its own make the first passes of a model, see `LLM.warm_up`."""

    def warm_up() -> None:
        with suppress(EdgespecError):  # a text says the same, to somebody who waits for it
            llm.warm_up()

    threading.Thread(target=warm_up, daemon=True).start()
