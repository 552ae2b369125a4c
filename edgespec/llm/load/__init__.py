"""From a bundle and options to models that run: place them, open them, make their drafters."""
