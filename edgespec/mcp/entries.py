"""The servers of a file with `mcpServers`, as other programs take it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edgespec.errors import InputError, reason
from edgespec.system.files import read_utf8

_PLACES = ("mcpServers", "servers")  # the latter is VS Code's
_ALLOWED = ("alwaysAllow", "autoApprove")
_EVERY = "*"
_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)(?::-([^}]*))?\}")
_SCHEMES = ("http", "https")

_Object = Mapping[str, Any]


@dataclass(frozen=True)
class ServerEntry:
    """A server of tools: a program that is started, or an address.

    Attributes:
        name: what the file calls it.
        command: the program, and what goes behind it; empty if there is an address.
        env: variables of its environment.
        cwd: folder in which it is started; None: this one.
        url: where it listens for streamable HTTP; empty if it is a program.
        headers: headers of each request.
        allowed: names of tools that are called without being asked about; `*`: all.
        disabled_tools: names of tools that models do not see.
    """

    name: str
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    disabled_tools: frozenset[str] = frozenset()

    def allows(self, tool: str) -> bool:
        """Whether a tool of this name is called without being asked about."""
        return not self.allowed.isdisjoint((tool, _EVERY))


def read_entries(path: Path) -> list[ServerEntry]:
    """Returns the servers of a file that are not disabled.

    Raises:
        InputError: if it is no JSON, or a server has neither a program nor an address.
        OSError: if it cannot be read.
    """
    try:
        found = json.loads(read_utf8(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not JSON ({reason(error)}): correct it") from error
    known: _Object = found if isinstance(found, Mapping) else {}
    servers = next((known[each] for each in _PLACES if each in known), None)
    if not isinstance(servers, Mapping):
        raise InputError(
            f'{path} has no mcpServers: give {{"mcpServers": {{"NAME": {{"command": ...}}}}}}'
        )
    entries = [
        _Reader(f"{path}: the MCP server {reason(name, 60)}", each).entry(name)
        for name, each in servers.items()
        if not (isinstance(each, Mapping) and each.get("disabled") is True)
    ]
    if not entries:
        raise InputError(f"{path} has no server that is enabled: add one, or leave out --mcp")
    return entries


class _Reader:
    """Reads what a file says of a server.

    Args:
        where: what errors call it.
        given: what the file says.
    """

    def __init__(self, where: str, given: object) -> None:
        if not isinstance(given, Mapping):
            raise InputError(f"{where} is {given!r:.60}: give an object with command or url")
        self._where = where
        self._given: _Object = given

    def entry(self, name: str) -> ServerEntry:
        """Returns the server."""
        command = self._text("command")
        url = self._text("url") or self._text("serverUrl")
        if bool(command) == bool(url):
            have = "both command and url" if url else "neither command nor url"
            raise InputError(f"{self._where} has {have}: give one of them")
        if self._given.get("type") == "sse":
            raise InputError(
                f"{self._where} has the type sse, which is not done here: give the address of its "
                "streamable HTTP, and leave out the type"
            )
        if url and (urlsplit(url).scheme not in _SCHEMES or not urlsplit(url).netloc):
            raise InputError(f"{self._where} has the url {url!r:.60}: begin it with https://")
        return ServerEntry(
            name,
            (command, *self._texts("args")) if command else (),
            self._pairs("env"),
            self._text("cwd") or None,
            url,
            self._pairs("headers"),
            frozenset(each for key in _ALLOWED for each in self._texts(key)),
            frozenset(self._texts("disabledTools")),
        )

    def _text(self, key: str) -> str:
        return self._filled(key, self._given.get(key) or "")

    def _texts(self, key: str) -> list[str]:
        found = self._given.get(key) or []
        if not isinstance(found, list):
            raise InputError(f"{self._where} has {key} {found!r:.60}: give a list of texts")
        return [self._filled(key, each) for each in found]

    def _pairs(self, key: str) -> dict[str, str]:
        found = self._given.get(key) or {}
        if not isinstance(found, Mapping):
            raise InputError(f"{self._where} has {key} {found!r:.60}: give an object of texts")
        return {name: self._filled(f"{key}.{name}", each) for name, each in found.items()}

    def _filled(self, key: str, value: object) -> str:
        """Returns a text with values of this process's environment for `${NAME}`."""
        if not isinstance(value, str) or "\0" in value:
            raise InputError(f"{self._where} has {key} {value!r:.60}: give a text")

        def fill(found: re.Match[str]) -> str:
            usual: str | None = found[2]
            known = os.environ.get(found[1], usual)
            if known is None:
                raise InputError(
                    f"{self._where} has {found[0]} in {key}, and there is no such variable: set "
                    f"{found[1]} in the environment"
                )
            return known

        return _VARIABLE.sub(fill, value)
