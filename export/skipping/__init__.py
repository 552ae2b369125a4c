"""Layer-skip drafts: which sublayers a draft leaves out, and the search for them."""
