"""The JAX programs of `tests/jax_programs` can be imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "jax_programs"))
