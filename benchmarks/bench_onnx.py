"""Speed of capturing ONNX models: operators a second, and a model of 60,000 nodes.

Run: `python benchmarks/bench_onnx.py`. Processor time is what the bars are held to, wall time is
shown beside it. The model is written to a file and read again, its weights elsewhere.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from onnx import ModelProto, TensorProto, helper

from predictor.capture.onnx.capture import capture_onnx
from predictor.lower.inference import lower_inference

NODES = 60_000
BAR_S = 10.0
BAR_OPERATORS_S = 20_000
A_BLOCK = 6


def chain(nodes: int) -> ModelProto:
    """Blocks of a linear layer, activation, reshape by a worked-out shape, and a sum."""
    made, weights, x = [], [], "x"
    for i in range(nodes // A_BLOCK):
        a, b, c, d, e, out = (f"{letter}{i}" for letter in "abcdey")
        for name, shape in ((f"w{i}", [64, 64]), (f"v{i}", [64])):
            weights.append(
                TensorProto(
                    name=name,
                    dims=shape,
                    data_type=TensorProto.FLOAT,
                    data_location=TensorProto.EXTERNAL,
                )
            )
        calls = [
            ("MatMul", [x, f"w{i}"], a), ("Add", [a, f"v{i}"], b), ("Relu", [b], c),
            ("Shape", [c], d), ("Reshape", [c, d], e), ("Add", [e, x], out),
        ]  # fmt: skip
        made += [helper.make_node(op, inputs, [result]) for op, inputs, result in calls]
        x = out
    graph = helper.make_graph(
        made, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def main() -> int:
    """Measure; the exit code says whether both bars are met."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.onnx"
        path.write_bytes(chain(NODES).SerializeToString())
        capture_onnx(chain(A_BLOCK * 10))  # what the first capture loads
        wall, start = time.perf_counter(), time.process_time()
        graph = capture_onnx(path)
        capture_s, capture_wall_s = time.process_time() - start, time.perf_counter() - wall
        lower_inference(graph)
        both_s = time.process_time() - start
    rate = NODES / capture_s
    print(
        f"{NODES:,} nodes: read and captured in {capture_s:.2f} s of processor time "
        f"({capture_wall_s:.2f} s wall), {rate:,.0f} operators/s; with lowering {both_s:.2f} s"
    )
    met = rate >= BAR_OPERATORS_S and both_s <= BAR_S
    print(f"bar: {BAR_OPERATORS_S:,} operators/s, {BAR_S} s: {'met' if met else 'NOT met'}")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
