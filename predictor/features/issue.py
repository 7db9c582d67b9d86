"""Columns of what clock and kind of memory decide beside rates: issue of instructions, latency.

Streaming kernels are bound by bandwidth in the roofline. Where there is plenty of it they are bound
by instructions: index arithmetic of strided and broadcast operands, an element at a time. Sums of
kernel times of GPT decoders (HW-GPT-Bench) give the rotary part of attention 3.0 to 3.9 clocks of a
unit an element on six GPUs, from 0.4 to 1.6 TB/s: an A100 is no faster there than an RTX A6000. The
shortest kernels take 4 to 8 us there on three GPUs with stacked memory and 1 to 2 us on three
without (replayed, A100 and H100 take 2.4 us, L40S 1.6).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictor.features.roofline import Roofline, op_class_of
from predictor.features.table import KernelTable
from predictor.hardware.device import Device
from predictor.hardware.peaks import MATRIX_CLASSES

ISSUE_COLUMNS: tuple[str, ...] = ("log_issue", "stacked_memory")
ATTENTION_FLOP = 512.0
"""FLOPs of attention that count as an element: its exponentials run on vector lanes."""
USUAL_CLOCK_MHZ = 1_500.0


def issue_columns(
    table: KernelTable, roof: Roofline, device: Device
) -> dict[str, NDArray[np.float64]]:
    """Time to issue every element over the roofline's time, and whether memory is stacked.

    `log_issue` is log(elements / (units x clock) / base): of streaming kernels by elements, of
    attention by FLOPs; 0 for other kernels and where the device's units are unknown.
    """
    classes = op_class_of(table)
    rows, cols, numel = table.dim("rows"), table.dim("cols"), table.dim("numel")
    elements = np.where(rows > 0, np.maximum(rows, 1) * np.maximum(cols, 1), numel)
    attention = classes == "attention"
    elements = np.where(attention, table.flops / ATTENTION_FLOP, elements)
    on = (attention | ~np.isin(classes, list(MATRIX_CLASSES))) & (elements > 0)
    issue = np.zeros(len(table))
    if device.kind == "gpu" and device.units:
        rate = device.units * (device.clock_boost_mhz or USUAL_CLOCK_MHZ)
        issue[on] = np.clip(np.log(elements[on] / rate / roof.base_us[on]), -8.0, 4.0)
    stacked = (device.memory_type or "").upper().startswith("HBM")
    return {"log_issue": issue, "stacked_memory": np.full(len(table), float(stacked))}
