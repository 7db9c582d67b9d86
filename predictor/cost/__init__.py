"""FLOPs, bytes and memory: one rule an op, plain arithmetic on dimensions."""
