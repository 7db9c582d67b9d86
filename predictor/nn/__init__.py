"""The graph network, its composition to steps, and what a checkpoint predicts."""
