"""A small folder of rows that the project measured itself."""

from __future__ import annotations

from pathlib import Path

from predictor.hardware.device_file import device_file_text
from predictor.hardware.probe import Processor, device_of
from predictor.traces.files import DEVICE_FILE
from predictor.traces.measure.rows_file import RowsFile

FOUND = Processor(
    name="Sample CPU", vendor="amd", family=25, model=17, cores=2, clock_mhz=2600.0,
    clock_boost_mhz=None, instruction_sets=("avx2", "fma"), l1_kib=32.0, l2_kib=1024.0,
    l3_kib=32768.0, memory_gib=8.0,
)  # fmt: skip
SHARED = {
    "device": FOUND.device_id, "framework": "pytorch", "framework_version": "2.13.0",
    "execution": "eager", "licence": "Apache-2.0",
}  # fmt: skip
LINEAR = {
    "op": "linear", "phase": "forward", "dtype": "fp32", "flops": 2e6, "read_bytes": 6e4,
    "write_bytes": 4e4, "dim_batch": 1, "dim_m": 100, "dim_n": 100, "dim_k": 100,
}  # fmt: skip
ADD = {
    "op": "add", "phase": "forward", "dtype": "bf16", "flops": 1e5, "read_bytes": 4e5,
    "write_bytes": 2e5, "dim_numel": 100_000, "dim_inputs": 2, "dim_outputs": 1,
}  # fmt: skip
STEP = {
    "mode": "train", "dtype": "fp32", "devices": 1, "measure": "wall", "latency_us": 5e4,
    "spread_us": 10.0, "repeats": 9, "forward_us": 2e4, "backward_us": 3e4,
}  # fmt: skip


def own_sample(root: Path, models: dict[str, dict[str, float]]) -> Path:
    """A folder of data with one device's folder in it.

    Args:
        root: where the folder is made.
        models: sizes of the steps by model.
    """
    folder = root / "layout" / FOUND.device_id
    folder.mkdir(parents=True)
    (folder / f"{FOUND.device_id}{DEVICE_FILE}").write_text(
        device_file_text(device_of(FOUND, stream_gbps=30.0))
    )
    kernels = RowsFile(folder / "kernels.parquet", "kernels")
    inside = RowsFile(folder / "in_step.parquet", "kernels")
    steps = RowsFile(folder / "steps.parquet", "steps")
    alone = {**SHARED, "context": "isolated", "spread_us": 1.0, "repeats": 10}
    kernels.add("linear", [{**alone, **LINEAR, "latency_us": 90.0}])
    kernels.add("add", [{**alone, **ADD, "latency_us": 40.0, "flag": "cold_cache"}])
    for model, sizes in models.items():
        within = {**alone, "context": "step", "model": model}
        inside.add(model, [{**within, **LINEAR, "latency_us": 95.0}])
        steps.add(model, [{**SHARED, **STEP, "model": model, **sizes}])
    for file in (kernels, inside, steps):
        file.write()
    return root / "layout"
