"""Traces of a program's steps, as the profiler exports them (Kineto)."""

from __future__ import annotations

from pathlib import Path

from predictor.atomic import replacing_file
from predictor.traces.measure.local import DeviceType
from predictor.traces.measure.program import RealProgram
from predictor.traces.measure.step_time import WARMUP_STEPS

STEPS = 3
"""Steps of a trace."""


def write_trace(
    program: RealProgram, device: DeviceType, path: Path, *, steps: int = STEPS
) -> None:
    """Export a trace of some steps, with shapes and step marks.

    Args:
        program: whose steps.
        device: `cpu` or `cuda`.
        path: `.json` or `.json.gz`.
        steps: how many.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    for _ in range(WARMUP_STEPS):
        program.step()
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
        torch.cuda.synchronize()
    with profile(activities=activities, record_shapes=True) as seen:
        for _ in range(steps):
            program.step()
            if device == "cuda":
                torch.cuda.synchronize()
            seen.step()
    with replacing_file(path) as temporary:
        seen.export_chrome_trace(str(temporary))
