"""Token trees, what drafters propose as such, and the walk that verifies them."""
