"""Profiler traces (PyTorch/Kineto) and execution graphs: reading, analysis, kernels by op."""
