"""A local HTTP server that speaks OpenAI's API; the extra `serve` has what it needs."""
