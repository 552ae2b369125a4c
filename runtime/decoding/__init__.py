"""The decoding loop, and how draft and target share the work of a round."""
