"""Time of an estimate from a captured graph, and every bundled program on every device.

Run it from the repository: `python benchmarks/estimates.py [--all]`.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter

import torch

from predictor import api, zoo
from predictor.errors import PredictorError
from predictor.graph.ir import OpGraph
from predictor.hardware.catalogue import load_catalogue

DTYPES = ("fp32", "amp-bf16")
REPEATS = 5


def time_estimate(graph: OpGraph, network: api.Predictor) -> tuple[int, float]:
    """Kernels, and the median seconds from captured graph to JSON, after loading."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        estimate = api.estimate(graph, device="nvidia-a100-sxm-80gb", checkpoint=network)
        estimate.to_json()
        seconds.append(time.perf_counter() - start)
    return len(estimate.graph.kernels), sorted(seconds)[REPEATS // 2]


def sweep(network: api.Predictor) -> tuple[int, Counter[str]]:
    """Every program, precision, mode and device: estimates made, and refusals by reason."""
    made, refused = 0, Counter[str]()
    for target in zoo.ZOO:
        for mode in ("infer", "train"):
            for dtype in DTYPES:
                graph = api.capture(target, mode=mode, dtype=dtype)
                for device in load_catalogue().values():
                    try:
                        step = api.estimate(graph, device=device, checkpoint=network).step
                    except PredictorError as error:
                        reason = str(error).replace(device.id, "device").split(";")[0]
                        refused[f"{type(error).__name__}: {reason}"] += 1
                        continue
                    times = (step.lower_us, step.latency_us, step.upper_us)
                    assert all(math.isfinite(t) and t > 0 for t in times), (target, device.id)
                    assert sorted(times) == list(times), (target, device.id)
                    made += 1
    return made, refused


def main() -> None:
    """Print the figures."""
    torch.set_num_threads(1)
    network = api.load()
    for target in ("bert-large", "gpt2-large", "llama-3-8b"):
        kernels, seconds = time_estimate(api.capture(target, mode="train"), network)
        print(f"{target} training step: {kernels:,} kernels, {seconds:.3f} s")
    if "--all" in sys.argv:
        made, refused = sweep(network)
        print(f"{made:,} estimates")
        for reason, n in refused.most_common():
            print(f"{n:6,} refused: {reason}")


if __name__ == "__main__":
    main()
