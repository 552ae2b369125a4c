"""The parts of an export that run the model: calibration, skip-set trials, variants for NPUs."""
