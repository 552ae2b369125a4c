"""Draft sources: they propose continuations that the target verifies."""
