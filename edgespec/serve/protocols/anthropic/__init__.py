"""Anthropic's API: messages of content blocks, and an answer as blocks and their events."""
