"""Importer of the NeuSight measurements (kernel sweeps, in-step ops, steps, peers' predictions).

Reads the public layout as it stands, plain or gzipped, whole or in part. Units there: ms; GEMM
letters (B, M, N) x (B, N, K): N is contracted. Rules, each counted where it drops a row:

* merged files that repeat per-device rows are skipped (`elem`, `ln`, `softmax` where `vec` stands;
  `habitat` always, it is `vec` again);
* latency missing, not finite or not positive: dropped;
* device unknown to the catalogue: dropped and named;
* Tesla P4 GEMM sweep rows above 1 ms show thermal throttling (efficiency falls with duration while
  the publisher's test rows on the same card do not): kept, flagged `throttled`;
* in-step rows of a graph whose op sum exceeds the measured step by more than 15%: kept, flagged
  `op_sum_above_step` (the step is the trustworthy one).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from predictor.cost.rules import kernel_cost
from predictor.errors import DataError, UnknownDeviceError
from predictor.graph.ops import DIM_NAMES
from predictor.hardware.catalogue import resolve_device
from predictor.traces.schema import KERNEL_COLUMNS, STEP_COLUMNS, Imported
from predictor.traces.sources.neusight_graph import build_graph, read_csv

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

SOURCE = "neusight"
PEERS: tuple[str, ...] = ("neusight", "habitat", "micro", "roofline")
THROTTLED_US = 1000.0
OP_SUM_LIMIT = 1.15

_VECTOR_OPS = {
    "add": ("add", 2), "addu": ("add", 1), "mul": ("mul", 2), "mulu": ("mul", 1),
    "div": ("div", 2), "divu": ("div", 1), "pow": ("pow", 2), "powu": ("pow", 1),
    "relu": ("relu", 1), "gelu": ("gelu", 1), "tanh": ("tanh", 1),
}  # fmt: skip
_ROW_OPS = {"ln": "layer_norm", "softmax": "softmax"}


def find_root(data: Path) -> Path:
    """The NeuSight folder below `data` (`data/neusight`, `data` itself, or a clone's folder).

    Raises:
        DataError: no part of the layout is there.
    """
    for candidate in (data / "neusight", data, data / "scripts" / "asplos"):
        if any((candidate / part).is_dir() for part in ("label", "results", "data/dataset")):
            return candidate
    raise DataError(
        f"{data}: no NeuSight layout (expected neusight/data, neusight/label or "
        "neusight/results below it)"
    )


def read(data: Path) -> Imported:
    """All rows below `data`, whatever part of the layout is present."""
    import pandas as pd

    root = find_root(data)
    out = Imported(
        source=SOURCE, kernels=pd.DataFrame(columns=list(KERNEL_COLUMNS)),
        steps=pd.DataFrame(columns=list(STEP_COLUMNS)), ops=pd.DataFrame(), graphs={},
        peers=pd.DataFrame(),
    )  # fmt: skip
    frames = [f for f in (_kernel_file(p, root, out) for p in _kernel_files(root)) if f is not None]
    if frames:
        out.kernels = pd.concat(frames, ignore_index=True)
    _read_steps(root, out)
    _read_peers(root, out)
    return out


def _kernel_files(root: Path) -> Iterator[Path]:
    collect = [*root.glob("data/dataset/train/collect/*/*/*.csv*")]
    collect += [*root.glob("data/dataset_amd/*/collect/*/*/*.csv*")]
    yield from sorted(collect)
    test = root / "data/dataset/test"
    names = {p.name.split(".")[0]: p for p in sorted(test.glob("*.csv*"))}
    skip = {"habitat"} | ({"elem", "ln", "softmax"} if "vec" in names else set())
    yield from (p for name, p in names.items() if name not in skip)


def _kernel_file(path: Path, root: Path, out: Imported) -> pd.DataFrame | None:
    """Rows of one sweep file in our schema."""
    import pandas as pd

    raw = read_csv(path)
    relative = str(path.relative_to(root))
    for column in ("OPName", "Latency", "Device"):
        if column not in raw.columns:
            raise DataError(f"{relative}: no column {column!r}; not a NeuSight sweep file")
    raw["row"] = np.arange(len(raw))
    raw = _keep(raw, np.isfinite(pd.to_numeric(raw["Latency"], errors="coerce")), out, relative,
                "Latency", "latency_not_a_number")  # fmt: skip
    raw = _keep(raw, raw["Latency"].astype(float) > 0, out, relative, "Latency",
                "latency_not_positive")  # fmt: skip
    devices = {name: _device_id(str(name)) for name in raw["Device"].unique()}
    raw["device"] = raw["Device"].map(devices)
    raw = _keep(raw, raw["device"].notna(), out, relative, "Device", "unknown_device")
    parts = []
    for op_name, rows in raw.groupby("OPName"):
        dims = _dims(str(op_name), rows)
        if dims is None:
            out.dropped["unknown_op"] += len(rows)
            continue
        parts.append(_kernel_rows(rows, relative, *dims))
    return pd.concat(parts, ignore_index=True) if parts else None


def _keep(
    rows: pd.DataFrame, good: Any, out: Imported, file: str, column: str, rule: str
) -> pd.DataFrame:
    bad = rows[~np.asarray(good, dtype=bool)]
    if len(bad):
        out.dropped[rule] += len(bad)
        first = bad.iloc[0]
        out.rejects.append({
            "file": file, "row": int(first["row"]), "column": column,
            "value": str(first[column]), "rule": rule, "rows": len(bad),
        })  # fmt: skip
        logger.warning("%s: %d rows dropped by rule %s", file, len(bad), rule)
    return rows[np.asarray(good, dtype=bool)]


def _device_id(name: str) -> str | None:
    try:
        return resolve_device(name.replace(" ", "_"), source=SOURCE).id
    except UnknownDeviceError:
        pass
    try:
        return resolve_device(name, source=SOURCE).id
    except UnknownDeviceError:
        logger.warning("device %r is not in the catalogue", name)
        return None


def _dims(op_name: str, rows: pd.DataFrame) -> tuple[str, dict[str, Any]] | None:
    """Vocabulary op and dimension columns of one NeuSight op name."""
    if op_name in ("bmm", "linear"):
        op = "bmm" if op_name == "bmm" else "linear"
        return op, {"batch": rows["B"], "m": rows["M"], "n": rows["K"], "k": rows["N"]}
    if op_name in _VECTOR_OPS:
        op, inputs = _VECTOR_OPS[op_name]
        return op, {"numel": rows["B"] * rows["H"], "inputs": inputs, "outputs": 1}
    if op_name in _ROW_OPS:
        return _ROW_OPS[op_name], {"rows": rows["B"], "cols": rows["H"]}
    if op_name == "conv":
        size, kernel = rows["Input_Size"], rows["Kernel_Szie"]
        side = (size + 2 * rows["Padding"] - kernel) // rows["Stride"] + 1
        return "conv", {
            "batch": rows["B"], "c_in": rows["Input_Channel"], "h_in": size, "w_in": size,
            "c_out": rows["Output_Channel"], "h_out": side, "w_out": side, "kh": kernel,
            "kw": kernel, "groups": 1,
        }  # fmt: skip
    return None


def _kernel_rows(rows: pd.DataFrame, file: str, op: str, dims: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    arrays = {d: np.broadcast_to(np.asarray(v, dtype=np.int64), len(rows)) for d, v in dims.items()}
    cost = kernel_cost(op, arrays, "fp32")
    amd = "dataset_amd" in file
    latency_us = rows["Latency"].to_numpy(dtype=float) * 1e3
    throttled = (
        (rows["device"] == "nvidia-tesla-p4").to_numpy()
        & (op in ("linear", "bmm")) & ("/train/" in file) & (latency_us > THROTTLED_US)
    )  # fmt: skip
    frame = pd.DataFrame({
        "row_id": [f"{SOURCE}:{file.removesuffix('.gz')}:{r}" for r in rows["row"]],
        "source": SOURCE, "file": file, "row": rows["row"].to_numpy(),
        "device": rows["device"].to_numpy(), "op": op, "phase": "forward", "dtype": "fp32",
        "context": "isolated", "flops": np.broadcast_to(cost.flops, len(rows)).astype(float),
        "read_bytes": np.broadcast_to(cost.read_bytes, len(rows)).astype(float),
        "write_bytes": np.broadcast_to(cost.write_bytes, len(rows)).astype(float),
        "latency_us": latency_us, "framework": "pytorch",
        "framework_version": "2.4.1" if amd else "2.1.0",
        "part": "test" if "/test/" in file else "train",
        "flag": np.where(throttled, "throttled", ""),
    })  # fmt: skip
    dim_columns = {f"dim_{d}": arrays.get(d, np.int64(-1)) for d in DIM_NAMES}
    return frame.assign(**dim_columns)[list(KERNEL_COLUMNS)]


def _read_steps(root: Path, out: Imported) -> None:
    """Step rows, in-step op rows and the graphs they need."""
    import pandas as pd

    steps: list[dict[str, Any]] = []
    ops: list[pd.DataFrame] = []
    for path in sorted(root.glob("label/*/*.json")):
        label = _read_json(path)
        row = _step_row(path, root, label, out)
        if row is None:
            continue
        graph_path = next(iter(sorted(root.glob(f"results/opgraph/{path.stem}.csv*"))), None)
        plain = row["plan"] == "single" and row["flag"] != "compiled"
        if graph_path is None:
            row["flag"] = row["flag"] or "no_graph"
        elif plain and path.stem not in out.graphs:
            out.graphs[path.stem] = build_graph(path.stem, root, int(label["num_layer"]))
        steps.append(row)
        measured = next(iter(sorted(path.parent.glob(f"{path.stem}.csv*"))), None)
        if measured is not None and path.stem in out.graphs:
            ops.append(_op_rows(measured, root, row, out))
    if steps:
        out.steps = pd.DataFrame(steps)[list(STEP_COLUMNS)]
    if ops:
        out.ops = pd.concat(ops, ignore_index=True)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name}: not readable JSON ({error})") from error
    if not isinstance(value, dict):
        raise DataError(f"{path.name}: expected a JSON object, found {type(value).__name__}")
    return value


def _step_row(
    path: Path, root: Path, label: dict[str, Any], out: Imported
) -> dict[str, Any] | None:
    relative = str(path.relative_to(root))
    device = _device_id(path.parent.name)
    total = label.get("e2e_latency")
    if device is None:
        out.dropped["unknown_device_step"] += 1
        return None
    if not isinstance(total, (int, float)) or not np.isfinite(total) or total <= 0:
        out.dropped["step_latency_not_positive"] += 1
        return None
    fields = path.stem.split("-")
    if len(fields) < 4 or not fields[2].isdigit() or not fields[3].isdigit():
        out.dropped["step_name_not_understood"] += 1
        return None
    model, mode, seq, batch = fields[:4]
    option = "-".join(fields[4:])
    backward = float(label.get("bwall_latency") or 0.0)
    return {
        "row_id": f"{SOURCE}:{relative}", "source": SOURCE, "file": relative, "device": device,
        "graph": path.stem, "model": model, "mode": "train" if mode == "train" else "infer",
        "batch": int(batch), "seq": int(seq),
        "plan": option if option and option != "fusion" else "single",
        "latency_us": float(total) * 1e3, "forward_us": float(label["fw_latency"]) * 1e3,
        "backward_us": backward * 1e3 if backward > 0 else np.nan,
        "flag": "compiled" if option == "fusion" else ("distributed" if option else ""),
    }  # fmt: skip


def _op_rows(path: Path, root: Path, step: dict[str, Any], out: Imported) -> pd.DataFrame:
    import pandas as pd

    graph = out.graphs[str(step["graph"])]
    raw = read_csv(path).drop_duplicates("Name")
    raw = raw[raw["Name"].isin(graph.nodes)]
    index = {name: i for i, name in enumerate(graph.nodes)}
    node = raw["Name"].map(index).to_numpy(dtype=np.int64)
    weight = graph.node_weight[node]
    total = float((raw["fw_latency"].to_numpy() * weight).sum()) * 1e3
    flag = "op_sum_above_step" if total > OP_SUM_LIMIT * float(step["forward_us"]) else ""
    if step["forward_us"] < 1e5:  # below 100 ms the timer's own cost per op explains the excess
        flag = flag if total > 1.4 * float(step["forward_us"]) else ""
    return pd.DataFrame({
        "row_id": [f"{step['row_id']}:{n}" for n in raw["Name"]],
        "device": step["device"], "graph": step["graph"], "model": step["model"],
        "mode": step["mode"], "node": node,
        "node_class": [graph.node_class[i] for i in node],
        "forward_us": raw["fw_latency"].to_numpy() * 1e3,
        "backward_us": raw["bw_latency"].to_numpy() * 1e3,
        "weight": weight, "flag": flag,
    })  # fmt: skip


def _read_peers(root: Path, out: Imported) -> None:
    """Published predictions of steps (JSON) and of ops (CSV), long format."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for path in sorted(root.glob("results/prediction/*/*/*.json")):
        peer, device = path.parent.name, _device_id(path.parent.parent.name)
        if peer not in PEERS or device is None:
            continue
        value = _read_json(path)
        rows.append({
            "device": device, "graph": path.stem, "peer": peer,
            "latency_us": float(value["e2e_latency"]) * 1e3,
            "forward_us": float(value["fw_latency"]) * 1e3,
            "backward_us": float(value["bwall_latency"]) * 1e3,
        })  # fmt: skip
    out.peers = pd.DataFrame(
        rows, columns=["device", "graph", "peer", "latency_us", "forward_us", "backward_us"]
    )


def peer_ops(data: Path) -> pd.DataFrame:
    """The peers' published predictions of each op, by phase, microseconds.

    Columns `device`, `graph`, `node_name`, `phase` and one `<peer>_us` a peer (`roofline` becomes
    `roofline_published`). MoE and compiled graphs are left out: no op of them was measured.
    """
    import pandas as pd

    root = find_root(data)
    by_peer: dict[str, list[pd.DataFrame]] = {}
    for path in sorted(root.glob("results/prediction/*/*/*.csv*")):
        peer, device = path.parent.name, _device_id(path.parent.parent.name)
        graph = path.name.split(".csv")[0]
        if peer not in PEERS or device is None or "fusion" in graph or "switch" in graph:
            continue
        raw = read_csv(path).drop_duplicates("Name")
        for phase, column in (("forward", "fw_latency"), ("backward", "bw_latency")):
            by_peer.setdefault(peer, []).append(pd.DataFrame({
                "device": device, "graph": graph, "node_name": raw["Name"], "phase": phase,
                "latency_us": raw[column].to_numpy(dtype=float) * 1e3,
            }))  # fmt: skip
    keys = ["device", "graph", "node_name", "phase"]
    joined = pd.DataFrame(columns=keys)
    for peer, frames in by_peer.items():
        name = "roofline_published_us" if peer == "roofline" else f"{peer}_us"
        table = pd.concat(frames, ignore_index=True).rename(columns={"latency_us": name})
        joined = table if joined.empty else joined.merge(table, on=keys, how="outer")
    return joined
