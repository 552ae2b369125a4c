"""Layer-skip drafts: sets of sublayers that a draft leaves out, and the search for them."""
