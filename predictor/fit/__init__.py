"""Training, cross-validation, calibration and evaluation of networks."""
