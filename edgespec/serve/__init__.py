"""A local HTTP server with OpenAI's API; the extra `serve` installs its dependencies."""
