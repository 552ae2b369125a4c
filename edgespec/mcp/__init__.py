"""A client of MCP servers: models call their tools, where a user has allowed it."""

from __future__ import annotations

from edgespec.errors import InputError, installing

try:
    from mcp import Client as _Client  # noqa: F401 - which older versions have not
except ImportError as error:
    raise InputError(
        f"tools of MCP servers need the package mcp, version 2 or later: {installing('mcp')}"
    ) from error
