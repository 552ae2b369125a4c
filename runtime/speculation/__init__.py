"""The decoding loop and its drafters, for any number of sequences at once."""
