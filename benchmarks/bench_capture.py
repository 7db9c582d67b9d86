"""Time and memory of capturing training steps of the bundled models, on one core.

Run: `python benchmarks/bench_capture.py [NAME ...]`. Each model runs in a fresh process, so that
the peak memory is its own; imports are not counted, except for what PyTorch loads at the first
call of its shape rules (about a second of the first capture).
"""

from __future__ import annotations

import json
import subprocess
import sys

DEFAULT = ("gpt2-large", "llama-3-8b", "llama-3-70b")
BARRED = ("gpt2-large", "llama-3-8b")
BAR_S = 3.0
BAR_GB = 2.0

ONE = """
import json, resource, sys, time
import torch
torch.set_num_threads(1)
from predictor.capture.target import capture_target
name, times = sys.argv[1], []
for turn in range(3):
    start = time.perf_counter()
    graph = capture_target(name, mode="train", optimizer="adamw")
    times.append(time.perf_counter() - start)
    if turn == 0:
        first = graph
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
calls = sum(not n.attrs.get("view") for n in graph.nodes)
print(json.dumps([times, peak, len(graph.nodes), calls, graph == first]))
"""


def main(names: list[str]) -> int:
    """Measure each model; the exit code says whether every bar was met."""
    met = True
    head = ("model", "first s", "again s", "peak GB", "nodes", "calls")
    print("{:12} {:>8} {:>8} {:>8} {:>7} {:>7}  same".format(*head))
    for name in names:
        result = subprocess.run(
            [sys.executable, "-c", ONE, name], check=True, capture_output=True, text=True
        )
        times, peak, nodes, calls, same = json.loads(result.stdout.splitlines()[-1])
        again = min(times[1:])
        print(f"{name:12} {times[0]:8.2f} {again:8.2f} {peak:8.2f} {nodes:7} {calls:7}  {same}")
        within = name not in BARRED or (times[0] <= BAR_S and peak < BAR_GB)
        met = met and within and same
    print(
        f"bar ({', '.join(BARRED)}): {BAR_S} s, {BAR_GB} GB; every graph identical when captured "
        f"again: {'met' if met else 'NOT met'}"
    )
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or list(DEFAULT)))
