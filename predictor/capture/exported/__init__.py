"""Exported programs (`torch.export`), in memory or in a `.pt2` file, as graphs of calls."""
