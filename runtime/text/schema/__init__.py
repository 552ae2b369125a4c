"""JSON schemas: read, brought to what a text can be held to, written as a grammar, and checked."""
