"""A server of tools over stdin and stdout or, with a port, over HTTP, as `mcp` makes them."""

from __future__ import annotations

import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp.types import AudioContent, CallToolResult, ImageContent, ResourceLink, TextContent

# A red pixel.
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)

server = MCPServer("weather")


@server.tool()
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"18 °C in {city}"


@server.tool(name="read.env")
def read_environment(name: str) -> str:
    """Read a variable of the server's environment."""
    return os.environ.get(name, "none")


@server.tool()
def numbers(most: int) -> list[int]:
    """Count."""
    return list(range(most))


@server.tool()
def fail(why: str) -> str:
    """Go wrong."""
    raise ValueError(why)


@server.tool()
def everything() -> CallToolResult:
    """Give a part of each kind."""
    return CallToolResult(
        content=[
            TextContent(text="a text"),
            ImageContent(data=PIXEL, mime_type="image/png"),
            AudioContent(data="AAAA", mime_type="audio/wav"),
            ResourceLink(name="notes", uri="file:///notes.txt", description="what was noted"),
        ]
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
