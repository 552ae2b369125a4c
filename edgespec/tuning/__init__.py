"""The parts of an export that run the model: calibration, skip-set search, variants for NPUs."""
