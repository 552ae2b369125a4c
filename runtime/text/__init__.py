"""Text to tokens and back, chat templates, schemas, tools, and what answers consist of."""
