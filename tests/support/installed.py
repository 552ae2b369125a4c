"""Other projects' clients of the server, which the extra `clients` installs."""

from __future__ import annotations

from types import ModuleType

import pytest


def installed(module: str) -> ModuleType:
    """Imports a client, or skips the test or test module, and says how to install it."""
    reason = f'{module.partition(".")[0]} is missing: pip install ".[clients]"'
    return pytest.importorskip(module, reason=reason)
