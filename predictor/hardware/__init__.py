"""Devices: their datasheet facts, the catalogue of them, and what can be read off the facts."""
