"""Ollama's API on the same server, for the same model, queue and limits."""
