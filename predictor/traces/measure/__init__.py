"""Measuring on the device at hand: kernels of a grid, whole programs, what surrounds both."""
