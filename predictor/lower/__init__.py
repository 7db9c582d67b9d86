"""Captured calls to launched kernels: one table a backend."""
