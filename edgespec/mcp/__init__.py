"""A client of MCP servers: models call their tools, where a user has allowed it."""
