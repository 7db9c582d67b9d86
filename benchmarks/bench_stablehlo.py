"""Time to read and lower a large StableHLO text: 60,000 operations under 10 s is the aim.

    python benchmarks/bench_stablehlo.py [OPERATIONS]

The text is a chain of residual MLP blocks with a norm, written out as JAX writes them.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import predictor
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import GPU

ROWS, WIDTH = 512, 1024
TARGET_S = 10.0
_X = f"tensor<{ROWS}x{WIDTH}xf32>"
_ROW = f"tensor<{ROWS}xf32>"
_W = f"tensor<{WIDTH}x{WIDTH}xf32>"
_B = f"tensor<{WIDTH}xf32>"
_BLOCK = f"""
    %m{{i}} = stablehlo.reduce(%x{{i}} init: %zero) applies stablehlo.add across dimensions = [1] : ({_X}, tensor<f32>) -> {_ROW}
    %n{{i}} = stablehlo.broadcast_in_dim %width, dims = [] : (tensor<f32>) -> {_ROW}
    %a{{i}} = stablehlo.divide %m{{i}}, %n{{i}} : {_ROW}
    %b{{i}} = stablehlo.broadcast_in_dim %a{{i}}, dims = [0] : ({_ROW}) -> {_X}
    %c{{i}} = stablehlo.subtract %x{{i}}, %b{{i}} : {_X}
    %d{{i}} = stablehlo.dot_general %c{{i}}, %w, contracting_dims = [1] x [0], precision = [DEFAULT, DEFAULT] : ({_X}, {_W}) -> {_X}
    %e{{i}} = stablehlo.broadcast_in_dim %bias, dims = [1] : ({_B}) -> {_X}
    %f{{i}} = stablehlo.add %d{{i}}, %e{{i}} : {_X}
    %g{{i}} = stablehlo.tanh %f{{i}} : {_X}
    %x{{j}} = stablehlo.add %x{{i}}, %g{{i}} : {_X}"""  # noqa: E501
BLOCK_OPS = 10


def text(operations: int) -> str:
    """A module of about that many operations."""
    blocks = max(1, operations // BLOCK_OPS)
    body = "".join(_BLOCK.format(i=i, j=i + 1) for i in range(blocks))
    return f"""module @chain {{
  func.func public @main(%x0: {_X}, %w: {_W}, %bias: {_B}) -> {_X} {{
    %zero = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %width = stablehlo.constant dense<{WIDTH}.0> : tensor<f32>{body}
    return %x{blocks} : {_X}
  }}
}}
"""


def main(operations: int) -> int:
    """Print the seconds of each part; 1 when reading misses its bar."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "chain.mlir"
        file.write_text(text(operations))
        predictor.capture(str(_small(Path(folder))))  # jaxlib is imported once
        start = time.process_time()
        graph = predictor.capture(str(file))
        captured = time.process_time()
        kernels = lower_xla(graph, GPU)
        lowered = time.process_time()
    print(f"{len(graph.nodes):,} operations of {file.name}")
    print(
        f"read and captured in {captured - start:.2f} s of processor time (aim: {TARGET_S:.0f} s)"
    )
    print(f"fused to {len(kernels.kernels):,} kernels in {lowered - captured:.2f} s more")
    return int(captured - start > TARGET_S)


def _small(folder: Path) -> Path:
    file = folder / "small.mlir"
    file.write_text(text(BLOCK_OPS))
    return file


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000))
