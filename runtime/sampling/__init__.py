"""The target's choice of the next token: noise, truncation, grammars, log-probabilities."""
