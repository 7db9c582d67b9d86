"""Kernels on a device as named feature columns, with their rooflines."""
