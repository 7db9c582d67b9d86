"""Lower the program of TpuGraphs' layout test data into the graph bank `tpugraphs`.

    python training/capture_tpugraphs.py FOLDER --out datasets/tpugraphs/graphs

FOLDER holds `module_tuning_data_layout.pb` as published. Needs the `jax` extra: jaxlib turns the
HLO module inside into StableHLO. No device is needed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from capture_own import at_one_batch

from predictor.hardware.catalogue import resolve_device
from predictor.lower.xla import lower_xla
from predictor.lower.xla_backends import backend_of
from predictor.program import capture
from predictor.traces.graph_bank_files import graph_id, write_bank
from predictor.traces.sources.tpugraphs import DEVICE, PROGRAM, SOURCE

FILE = "module_tuning_data_layout.pb"
MODULE = 1
"""Field that holds the HLO module."""
BATCH = 2


def fields(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of the fields of a protocol buffer that have a length."""
    at = 0
    while at < len(content):
        key, at = _varint(content, at)
        if key & 7 == 2:
            size, at = _varint(content, at)
            yield key >> 3, content[at : at + size]
            at += size
        elif key & 7 == 0:
            _, at = _varint(content, at)
        else:
            at += {1: 8, 5: 4}[key & 7]


def _varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    from jaxlib import xla_client

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    given = parser.parse_args(arguments)
    content = (given.folder / FILE).read_bytes()
    module = next(value for number, value in fields(content) if number == MODULE)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / f"{PROGRAM}.mlirbc"
        program.write_bytes(xla_client._xla.mlir.hlo_to_stablehlo(module))
        captured = capture(str(program))
    kernels = lower_xla(captured, backend_of(resolve_device(DEVICE)), allow_opaque=True)
    whole = tuple(
        replace(
            k,
            flops=round(k.flops),
            read_bytes=round(k.read_bytes),
            write_bytes=round(k.write_bytes),
        )
        for k in kernels.kernels
    )  # a bank holds whole numbers; an all-reduce adds (n - 1) / n of its elements
    graph = at_one_batch(replace(kernels, kernels=whole))
    name = graph_id(graph, SOURCE)
    row = {
        "model": PROGRAM, "size": 0, "mode": "train", "variant": "bf16", "layout": "",
        "batch_from": BATCH, "batch_to": BATCH, "graph": name, "family": PROGRAM, "fold": 0,
        "graph_group": "", "cross_fold_twin": "", "parameters": captured.workload.parameters,
    }  # fmt: skip
    given.out.mkdir(parents=True, exist_ok=True)
    write_bank(given.out, {name: graph}, pd.DataFrame([row]))
    sys.stdout.write(f"{given.out}: {name}, {len(kernels.kernels)} kernels\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
