"""Rich's console for tables, in which no text of strangers steers a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from edgespec.errors import harmless


class HarmlessConsole(Console):
    """A console for texts of whatever origin; brackets in them are no markup."""

    def __init__(self, **how: Any) -> None:
        super().__init__(markup=False, **how)

    def render_str(self, text: str, **how: Any) -> Text:
        """Returns a text as rich shows it; it asks for those of tables' cells and titles, too."""
        return super().render_str(harmless(text), **how)
