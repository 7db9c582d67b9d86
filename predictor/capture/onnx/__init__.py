"""Capture of ONNX models: the same graph records that PyTorch capture writes, without running."""
