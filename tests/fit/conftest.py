"""A small NeuSight layout whose times follow a formula, and one run trained on it.

Three devices of the protocol (V100 and T4 train, L4 tests), a few hundred kernel rows, two models
with op graphs, in-step ops, steps and the predictions of four peers. Times are a roofline with a
factor of its own for every device, so that a trained network has something to learn.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from predictor.checkpoint import Release
from predictor.fit.train import train
from predictor.hardware.catalogue import resolve_device

DEVICES: Mapping[str, str] = {
    "Tesla V100-PCIE-32GB": "nvidia-v100-pcie-32gb",
    "Tesla T4": "nvidia-t4",
    "NVIDIA L4": "nvidia-l4",
}
"""Published name and catalogue id."""
TRAIN_DEVICES = ("nvidia-t4", "nvidia-v100-pcie-32gb")
TEST_DEVICE = "nvidia-l4"
FACTOR = {"nvidia-v100-pcie-32gb": 1.3, "nvidia-t4": 1.9, "nvidia-l4": 1.6}
LAUNCH_US = 8.0
LAYERS = 3
PEERS = {"neusight": 1.1, "habitat": 2.0, "micro": 1.5, "roofline": 0.6}
"""What each peer predicts, as a multiple of the measured time."""
GRAPHS = ("toy-inf-1024-8", "toy-train-1024-8", "alien-inf-512-16", "alien-train-512-16")
RECIPE = """
name = "tiny-v1"
split = "neusight-protocol"
threads = 1
[network]
hidden = 8
depth = 1
token_width = 2
message_layers = 1
[optimizer]
epochs = 3
batch_size = 128
step_every = 1
"""


def time_us(device: str, flops: float, size_bytes: float) -> float:
    """The formula that stands for a measurement."""
    found = resolve_device(device)
    assert found.peak_fp32_tflops is not None and found.memory_bw_gbps is not None
    compute = flops / (found.peak_fp32_tflops * 1e6)
    memory = size_bytes / (found.memory_bw_gbps * 1e3)
    return FACTOR[device] * max(compute, memory) + LAUNCH_US


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the toy graphs: what it reads, and what it costs forward."""

    name: str
    op: str
    forward: str
    inputs: str
    output: str
    flops: float
    size_bytes: float
    prev: str = ""
    backward: str = "[]"
    repeats: bool = True


def nodes(batch: int, seq: int, hidden: int, *, train: bool) -> list[Node]:
    """A layer of norm, linear, batched product, softmax and residual, and a norm behind it."""
    rows, wide = batch * seq, f"({batch}, {seq}, {hidden})"
    scores = f"({batch}, {seq}, {seq})"
    numel, squares = rows * hidden, batch * seq * seq
    out = [
        Node(name="transformer_h_0_ln_1", op="VECln", forward=f"[['VECln', ({rows}, {hidden})]]",
             backward=f"[['VECmul', ({rows}, {hidden})]]", prev="input_ids", inputs=f"[{wide}]",
             output=wide, flops=8 * numel, size_bytes=8 * numel),
        Node(name="addmm", op="Linear", forward=f"[['Linear', ({rows}, {hidden}, {hidden})]]",
             backward=f"[['Linear', ({rows}, {hidden}, {hidden})]]", prev="transformer_h_0_ln_1",
             inputs=f"[({hidden},), ({rows}, {hidden}), ({hidden}, {hidden})]",
             output=f"({rows}, {hidden})", flops=2 * numel * hidden,
             size_bytes=4 * (2 * numel + hidden * hidden)),
        Node(name="matmul", op="BMM", forward=f"[['BMM', ({batch}, {seq}, {hidden}, {seq})]]",
             backward=f"[['BMM', ({batch}, {seq}, {seq}, {hidden})]]", prev="addmm",
             inputs=f"[{wide}, ({batch}, {hidden}, {seq})]", output=scores,
             flops=2 * squares * hidden, size_bytes=4 * (2 * numel + squares)),
        Node(name="softmax", op="VECsoftmax", forward=f"[['VECsoftmax', ({rows}, {seq})]]",
             backward=f"[['VECmul', ({rows}, {seq})]]", prev="matmul", inputs=f"[{scores}]",
             output=scores, flops=5 * squares, size_bytes=8 * squares),
        Node(name="add_1", op="VECadd", forward=f"[['VECadd', ({rows}, {seq})]]",
             backward="[['MEM', ((1,),)]]", prev="softmax", inputs=f"[{scores}, {scores}]",
             output=scores, flops=squares, size_bytes=12 * squares),
        Node(name="transformer_ln_f", op="VECln", forward=f"[['VECln', ({rows}, {seq})]]",
             backward=f"[['VECmul', ({rows}, {seq})]]", prev="add_1", inputs=f"[{scores}]",
             output=scores, flops=8 * squares, size_bytes=8 * squares, repeats=False),
    ]  # fmt: skip
    return [n if train else Node(**{**_fields(n), "backward": "[]"}) for n in out]


def _fields(node: Node) -> dict[str, object]:
    return {name: getattr(node, name) for name in Node.__dataclass_fields__}


def graph_nodes(name: str) -> list[Node]:
    """Nodes of one of `GRAPHS`."""
    model, mode, seq, batch = name.split("-")
    hidden = {"toy": 512, "alien": 768}[model]
    return nodes(int(batch), int(seq), hidden, train=mode == "train")


@dataclass(frozen=True)
class Layout:
    """Writes parts of the layout below `root/neusight`."""

    root: Path

    @property
    def top(self) -> Path:
        """The folder as published."""
        return self.root / "neusight"

    def table(self, path: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A gzipped CSV."""
        text = io.StringIO()
        csv.writer(text).writerows([list(columns), *rows])
        target = self.top / f"{path}.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))

    def json(self, path: str, value: object) -> None:
        """A JSON file."""
        target = self.top / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(value))

    def kernels(self, device: str, rows: int = 30) -> None:
        """Sweeps of five ops on a device, the same shapes everywhere."""
        rng = np.random.default_rng(0)
        part = "test" if DEVICES[device] == TEST_DEVICE else "train"
        for op in ("linear", "bmm", "add", "ln", "softmax"):
            sizes = np.exp2(rng.uniform(4, 11, (rows, 4))).astype(int)
            body = [self._kernel(op, device, *map(int, size)) for size in sizes]
            columns = ("B", "M", "N", "K") if op in ("linear", "bmm") else ("B", "H")
            path = (
                f"data/dataset/train/collect/{op}/p2.1.0/{device}.csv" if part == "train"
                else f"data/dataset/test/{op}.csv"
            )  # fmt: skip
            self.table(path, ("OPName", "Latency", "Device", *columns), body)

    def _kernel(self, op: str, device: str, b: int, m: int, n: int, k: int) -> list[object]:
        if op in ("linear", "bmm"):
            b = 1 if op == "linear" else min(b, 16)
            flops = 2 * b * m * n * k
            size = 4 * b * (m * n + n * k + m * k)
            shape: list[object] = [b, m, n, k]
        else:
            flops, size = 5 * m * n, 4 * m * n * (3 if op == "add" else 2)
            shape = [m, n]
        return [op, time_us(DEVICES[device], flops, size) * 1e-3, device, *shape]

    def graphs(self, names: Sequence[str] = GRAPHS) -> None:
        """Op graphs, without the raw ones."""
        columns = (
            "Name", "OpName", "FwOps", "BwOps", "AccOps", "Prev", "Next", "InputShapes",
            "OutputShape",
        )  # fmt: skip
        for name in names:
            body: list[list[object]] = [
                ["input_ids", "misc", "[]", "[]", "[]", "set()", "set()", "[]", "(4, 4)"]
            ]
            body += [
                [n.name, n.op, n.forward, n.backward, "[]", str({n.prev}), "set()", n.inputs,
                 n.output]
                for n in graph_nodes(name)
            ]  # fmt: skip
            self.table(f"results/opgraph/{name}.csv", columns, body)

    def steps(self, device: str, names: Sequence[str] = GRAPHS, *, ops: bool = True) -> None:
        """Labels of steps, and the ops measured inside them."""
        folder = f"label/{device.replace(' ', '_')}"
        for name in names:
            body = []
            forward = backward = 0.0
            for node in graph_nodes(name):
                ms = time_us(DEVICES[device], node.flops, node.size_bytes) * 1e-3
                back = 2 * ms if node.backward != "[]" else 0.0
                repeats = LAYERS if node.repeats else 1
                forward, backward = forward + ms * repeats, backward + back * repeats
                body.append([node.name, ms + back, ms, back, 0.0])
            self.json(f"{folder}/{name}.json", _label(forward, backward))
            if ops:
                columns = ("Name", "latency", "fw_latency", "bw_latency", "acc_latency")
                self.table(f"{folder}/{name}.csv", columns, body)

    def predictions(self, device: str, names: Sequence[str] = GRAPHS) -> None:
        """Step and op predictions of all four peers."""
        for name in names:
            label = json.loads(
                (self.top / f"label/{device.replace(' ', '_')}/{name}.json").read_text()
            )
            for peer, factor in PEERS.items():
                path = f"results/prediction/{device.replace(' ', '_')}/{peer}/{name}"
                times = {k: v * factor for k, v in label.items() if k.endswith("latency")}
                self.json(f"{path}.json", times)
                rows = [
                    [n.name, n.op, time_us(DEVICES[device], n.flops, n.size_bytes) * 1e-3 * factor,
                     0.1 * factor]
                    for n in graph_nodes(name)
                ]  # fmt: skip
                self.table(f"{path}.csv", ("Name", "OpName", "fw_latency", "bw_latency"), rows)

    def complete(self) -> Path:
        """Everything on all three devices; the folder to pass as data."""
        self.graphs()
        for device in DEVICES:
            self.kernels(device)
            self.steps(device)
            self.predictions(device)
        return self.root


def _label(forward_ms: float, backward_ms: float) -> dict[str, float]:
    return {
        "num_layer": LAYERS, "e2e_latency": forward_ms + backward_ms, "fw_latency": forward_ms,
        "bwall_latency": backward_ms,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small are slower on several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A writer of parts of the layout."""
    return Layout(tmp_path / "data")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole layout, once."""
    return Layout(tmp_path_factory.mktemp("traces")).complete()


@pytest.fixture(scope="session")
def recipe_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe small enough to train in a second."""
    path = tmp_path_factory.mktemp("recipe") / "tiny-v1.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory, data_dir: Path, recipe_path: Path) -> Path:
    """A finished run with all its folds."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("runs") / "tiny"
    train(recipe_path, [data_dir], out, progress=False)
    return out


@pytest.fixture
def train_once(recipe_path: Path, data_dir: Path, tmp_path: Path) -> Callable[..., Release]:
    """Train without folds; `network__hidden=4` overrides `network.hidden` of the recipe."""

    def run(out: str = "run", *, data: Sequence[Path] | None = None, **settings: object) -> Release:
        overrides = {"calibration.device_folds": "false", "calibration.model_folds": "false"}
        overrides |= {k.replace("__", "."): str(v) for k, v in settings.items()}
        return train(recipe_path, data or [data_dir], tmp_path / out, overrides, progress=False)

    return run
