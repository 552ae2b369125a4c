"""The decoding loop, and how the draft and the target share a round."""
