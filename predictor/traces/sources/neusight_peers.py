"""What the published predictors said of the same steps and ops. Never labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from predictor.traces.schema import PEER_COLUMNS, Imported
from predictor.traces.sources.neusight_cells import json_number
from predictor.traces.sources.neusight_layout import Layout, open_layout

if TYPE_CHECKING:
    import pandas as pd

PEERS: tuple[str, ...] = ("neusight", "habitat", "micro", "roofline")
"""Folders of predictions: NeuSight, Habitat, Li et al. (`micro`) and its own roofline."""
_TIMES = {"latency_us": "e2e_latency", "forward_us": "fw_latency", "backward_us": "bwall_latency"}


def read_peers(layout: Layout, out: Imported) -> None:
    """Add the published predictions of steps to `out`, one row a step and peer."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for path in layout.predictions("*.json"):
        peer, device = path.parent.name, layout.device(path.parent.parent.name)
        file = layout.reader.name(path)
        if peer not in PEERS:
            layout.left_out[file] = "a predictor that is not compared with"
            continue
        if device is None:
            out.reject(
                file=file, row=None, column="device", value=path.parent.parent.name,
                rule="unknown_device_prediction",
            )  # fmt: skip
            continue
        value = layout.reader.json(path)
        bad = next((c for c in _TIMES.values() if not _is_time(value.get(c))), None)
        if bad is not None:
            out.reject(
                file=file, row=None, column=bad, value=value.get(bad),
                rule="prediction_not_a_number",
            )  # fmt: skip
            continue
        times = {ours: float(value[theirs]) * 1e3 for ours, theirs in _TIMES.items()}
        rows.append({"device": device, "graph": path.stem, "peer": peer, **times})
    if rows:
        out.peers = pd.DataFrame(rows, columns=list(PEER_COLUMNS))


def _is_time(value: object) -> bool:
    number = json_number(value)
    return number is not None and number >= 0


def peer_ops(data: Path) -> pd.DataFrame:
    """The peers' published predictions of each op, by phase, microseconds.

    Columns `device`, `graph`, `node_name`, `phase` and one `<peer>_us` a peer (`roofline` becomes
    `roofline_published`). MoE and compiled graphs are left out: no op of them was measured.
    """
    import pandas as pd

    layout = open_layout(data)
    by_peer: dict[str, list[pd.DataFrame]] = {}
    for path in layout.predictions("*"):
        peer, device = path.parent.name, layout.device(path.parent.parent.name)
        graph = path.name.split(".csv")[0]
        if peer not in PEERS or device is None or "fusion" in graph or "switch" in graph:
            continue
        raw = layout.reader.csv(path, columns=("Name", "fw_latency", "bw_latency"))
        raw = raw.drop_duplicates("Name")
        for phase, column in (("forward", "fw_latency"), ("backward", "bw_latency")):
            latency = pd.to_numeric(raw[column], errors="coerce").to_numpy(dtype=float)
            by_peer.setdefault(peer, []).append(pd.DataFrame({
                "device": device, "graph": graph, "node_name": raw["Name"], "phase": phase,
                "latency_us": latency * 1e3,
            }))  # fmt: skip
    keys = ["device", "graph", "node_name", "phase"]
    joined = pd.DataFrame(columns=keys)
    for peer, frames in by_peer.items():
        name = "roofline_published_us" if peer == "roofline" else f"{peer}_us"
        table = pd.concat(frames, ignore_index=True).rename(columns={"latency_us": name})
        joined = table if joined.empty else joined.merge(table, on=keys, how="outer")
    return joined
