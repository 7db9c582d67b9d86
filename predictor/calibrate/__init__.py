"""Intervals and device adapters: arrays in, scales and corrections out.

`posterior.fit_adapter(readings, prior)` and `posterior.apply(posterior, readings)` are the fit of a
few measurements; `predictor.fit.readings` makes the readings from measured rows, `prior` holds what
is expected of a new device.
"""
