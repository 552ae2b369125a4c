"""Batches: files of requests in OpenAI's format, answered without a server."""
