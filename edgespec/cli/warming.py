"""A first call of the models while the user has not asked for anything yet."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from edgespec.errors import EdgespecError

if TYPE_CHECKING:
    from edgespec.api.llm import LLM


def warm_up_aside(llm: LLM) -> None:
    """Has a thread of its own make the first calls of a model, see `LLM.warm_up`."""

    def warm_up() -> None:
        with suppress(EdgespecError):  # a text says the same, to somebody who waits for it
            llm.warm_up()

    threading.Thread(target=warm_up, daemon=True).start()
