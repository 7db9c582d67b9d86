"""Reads a made trace of gigabytes: `python benchmarks/kineto_stream.py [--gb 2] [--gzip] [--rows]`.

The file is made in a temporary folder by repeating the events of a small training loop with new
times and ids, then summed up in a process of its own, whose largest memory and speed are printed;
`--rows` imports it too. Exits with 1 above 1 GB of memory or below 20 MB a second of processor time
(another program on the same core changes the clock's time, not that).
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

IMPORT = """
import logging, resource, sys, time
from pathlib import Path
logging.disable()
start = time.perf_counter()
from predictor.commands.kineto import import_traces
import_traces(Path(sys.argv[1]), Path(sys.argv[1]).parent / "rows", None)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"import: {time.perf_counter() - start:.1f} s, CPU {time.process_time():.1f} s, "
      f"peak memory {peak:.0f} MiB")
sys.exit(peak * 2**20 > 1e9)
"""
READ = """
import resource, sys, time
from pathlib import Path
from predictor.traces.kineto.summary import summaries
from predictor.traces.kineto.table import summary_text
from predictor.traces.kineto.trace import read_trace
imported = time.perf_counter()
before = time.process_time()
trace = read_trace(Path(sys.argv[1]))
read = time.perf_counter()
cpu = time.process_time() - before
text = summary_text(summaries(trace)[0])
done = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
size = int(sys.argv[2]) / 1e6
print(f"{size / 1e3:.2f} GB: read {read - imported:.1f} s ({size / (read - imported):.1f} MB/s; "
      f"{size / cpu:.1f} MB a second of processor time), summary {done - read:.1f} s, "
      f"peak memory {peak:.0f} MiB, {len(trace.ops) + len(trace.device):,} ops and kernels")
print(text)
sys.exit(peak * 2**20 > 1e9 or size / cpu < 20)
"""
KERNELS = ("ampere_sgemm_128x64_tn", "void at::native::vectorized_elementwise_kernel<4>(int)",
           "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)")  # fmt: skip
CALLS_A_STEP = 400


def step_events(number: int) -> list[dict[str, object]]:
    """Events of one step: ops, launches, arrows and kernels."""
    start = 4_458_676_000_000.0 + 50_000.0 * number
    events: list[dict[str, object]] = [{
        "ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1,
        "ts": start, "dur": 49_990.0, "args": {"External id": number, "Ev Idx": 0},
    }]  # fmt: skip
    for call in range(CALLS_A_STEP):
        link = number * CALLS_A_STEP + call
        at = round(start + 100.0 * call + 0.123, 3)
        inner = 256 * (call % 8 + 1)
        dims = [[512], [1024, inner], [inner, 512], [], []]
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1, "ts": at,
             "dur": 40.5, "args": {"External id": link, "Record function id": link,
             "Concrete Inputs": ["", "", "", "1", "1"], "Ev Idx": link, "Input Dims": dims,
             "Input type": ["float", "float", "float", "Scalar", "Scalar"],
             "Input Strides": [[1], [inner, 1], [512, 1], [], []]}},
            {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
             "ts": at + 10, "dur": 5.25, "args": {"cbid": 211, "correlation": link}},
            {"ph": "s", "id": link, "pid": 1, "tid": 1, "ts": at + 10, "cat": "ac2g",
             "name": "ac2g"},
            {"ph": "f", "id": link, "pid": 0, "tid": 7, "ts": at + 30, "cat": "ac2g",
             "name": "ac2g", "bp": "e"},
            {"ph": "X", "cat": "kernel", "name": KERNELS[call % 3], "pid": 0, "tid": 7,
             "ts": at + 30, "dur": 61.7, "args": {"External id": link, "queued": 0, "device": 0,
             "context": 1, "stream": 7 + call % 3 // 2, "correlation": link,
             "registers per thread": 96, "shared memory": 0, "blocks per SM": 0.59,
             "warps per SM": 4.74, "grid": [64, 1, 1], "block": [256, 1, 1],
             "est. achieved occupancy %": 7}},
        ]  # fmt: skip
    return events


def write(path: Path, size_bytes: float, *, packed: bool) -> int:
    """Write a trace of about that many uncompressed bytes; how many there are."""
    written = number = 0
    with gzip.open(path, "wb", compresslevel=1) if packed else path.open("wb") as out:
        head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB"}],
        }
        written += out.write((json.dumps(head)[:-1] + ', "traceEvents": [\n').encode())
        while written < size_bytes:
            text = ",\n".join(json.dumps(e) for e in step_events(number))
            written += out.write(((",\n" if number else "") + text).encode())
            number += 1
        written += out.write(b"\n]}\n")
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--gzip", action="store_true")
    parser.add_argument("--rows", action="store_true", help="import the rows too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        free = shutil.disk_usage(folder).free
        if free < 1.5e9 * options.gb:
            sys.exit(f"{folder} has {free / 1e9:.1f} GB free; {1.5 * options.gb:.1f} are needed")
        path = Path(folder) / ("trace.json.gz" if options.gzip else "trace.json")
        size = write(path, options.gb * 1e9, packed=options.gzip)
        for code in (READ, IMPORT) if options.rows else (READ,):
            if subprocess.run([sys.executable, "-c", code, str(path), str(size)]).returncode:
                sys.exit(1)


if __name__ == "__main__":
    main()
