"""Estimates as records, JSON, DataFrames and text."""
