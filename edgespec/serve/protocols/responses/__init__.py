"""OpenAI's newer API: a conversation as items, and an answer as items and their events."""
