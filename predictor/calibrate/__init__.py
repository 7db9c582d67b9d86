"""Intervals and device adapters: arrays in, scales out."""
