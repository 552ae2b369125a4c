"""Token trees, the proposals of draft sources, and the walk that verifies them."""
