"""A small NeuSight layout with the published column names, written file by file."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

GEMM = ("B", "M", "N", "K")
VECTOR = ("B", "H")
CONV = (
    "B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Stride", "Padding",
)  # fmt: skip
LAYERS = 3
TRAIN, INFER = "toy-train-4-2", "toy-inf-4-2"
P4, V100, L4 = "Tesla P4", "Tesla V100-PCIE-32GB", "NVIDIA L4"
FOLDER = {name: name.replace(" ", "_") for name in (P4, V100, L4)}
PEERS = ("neusight", "habitat", "micro", "roofline")
TRAIN_LABEL = {
    "num_layer": LAYERS, "e2e_latency": 9.0, "fw_latency": 3.0, "bwall_latency": 6.0,
}  # fmt: skip
INFER_LABEL = {"num_layer": LAYERS, "e2e_latency": 2.0, "fw_latency": 2.0, "bwall_latency": 0}


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of a published op graph."""

    name: str
    op: str = "misc"
    fw: str = "[]"
    bw: str = "[]"
    prev: tuple[str, ...] = ()
    inputs: str = "[]"
    output: str = "(1,)"
    in_layer: bool = True
    """Whether the module stack of the raw graph says so."""


def toy_nodes() -> list[Node]:
    """One layer of a toy decoder in training: batch 2, sequence 4, hidden 8, 2 heads of 4."""
    hidden, heads = "(2, 4, 8)", "(2, 2, 4, 4)"
    mem = f"[['MEM', ({hidden}, {hidden})]]"
    grad = "[['MEM', ((8, 8),)]]"
    return [
        Node(name="input_ids", output="(2, 4)", in_layer=False),
        Node(name="transformer_wte", op="EMBEDDING", fw="[['MEM', ((2, 4), (2, 4, 8))]]",
             bw="[['MEM', ((10, 8),)]]", prev=("input_ids",), inputs="[(2, 4)]", output=hidden,
             in_layer=False),
        Node(name="transformer_drop", op="dropout", fw=mem, bw=grad, prev=("transformer_wte",),
             inputs=f"[{hidden}]", output=hidden, in_layer=False),
        Node(name="transformer_h_0_ln_1", op="VECln", fw="[['VECln', (8, 8)]]",
             bw="[['VECmul', (8, 8)]]", prev=("transformer_drop",), inputs=f"[{hidden}]",
             output=hidden),
        Node(name="view", prev=("transformer_h_0_ln_1",), inputs=f"[{hidden}]", output="(8, 8)"),
        Node(name="addmm", op="Linear", fw="[['Linear', (8, 8, 24)]]",
             bw="[['Linear', (8, 24, 8)], ['Linear', (24, 8, 8)]]", prev=("view",),
             inputs="[(24,), (8, 8), (8, 24)]", output="(8, 24)"),
        Node(name="view_1", prev=("addmm",), inputs="[(8, 24)]", output=heads),
        Node(name="permute", prev=("view_1",), inputs=f"[{heads}]", output=heads),
        Node(name="matmul", op="BMM", fw="[['BMM', (4, 4, 4, 4)]]",
             bw="[['BMM', (4, 4, 4, 4)], ['BMM', (4, 4, 4, 4)]]", prev=("view_1", "permute"),
             inputs=f"[{heads}, {heads}]", output=heads),
        Node(name="mul", op="VECmulu", fw="[['VECmulu', (16, 4)]]", bw="[['VECmulu', (16, 4)]]",
             prev=("matmul",), inputs=f"[{heads}]", output=heads),
        Node(name="softmax", op="VECsoftmax", fw="[['VECsoftmax', (16, 4)]]",
             bw="[['VECmul', (16, 4)], ['VECsoftmax', (16, 4)]]", prev=("mul",),
             inputs=f"[{heads}]", output=heads),
        Node(name="pow_1", op="VECpowu", fw="[['VECpowu', (16, 4)]]",
             bw="[['VECpowu', (16, 4)], ['VECmul', (16, 4)], ['VECmulu', (16, 4)]]",
             prev=("softmax",), inputs=f"[{heads}]", output=heads),
        Node(name="mul_1", op="VECmul", fw="[['VECmul', (16, 4)]]",
             bw="[['VECmul', (16, 4)], ['VECmul', (16, 4)]]", prev=("pow_1", "softmax"),
             inputs=f"[{heads}, {heads}]", output=heads),
        Node(name="add_1", op="VECadd", fw="[['VECadd', (16, 4)]]", bw="[['MEM', ((16, 4),)]]",
             prev=("mul_1", "view_1"), inputs=f"[{heads}, {heads}]", output=heads),
        Node(name="transformer_ln_f", op="VECln", fw="[['VECln', (8, 8)]]",
             bw="[['VECmul', (8, 8)]]", prev=("add_1",), inputs=f"[{hidden}]", output=hidden,
             in_layer=False),
        Node(name="lm_head", op="Linear", fw="[['Linear', (8, 8, 10)]]",
             bw="[['Linear', (8, 10, 8)], ['Linear', (10, 8, 8)]]", prev=("transformer_ln_f",),
             inputs=f"[{hidden}]", output="(2, 4, 10)", in_layer=False),
        Node(name="output", op="output", prev=("lm_head",), inputs="[(2, 4, 10)]",
             output="(2, 4, 10)", in_layer=False),
    ]  # fmt: skip


def inference(nodes: Sequence[Node]) -> list[Node]:
    """The same graph as published for inference: no backward, free dropout."""
    return [
        Node(name=n.name, op=n.op, fw="[]" if n.op == "dropout" else n.fw, prev=n.prev,
             inputs=n.inputs, output=n.output, in_layer=n.in_layer)
        for n in nodes
    ]  # fmt: skip


@dataclass(frozen=True)
class LayoutWriter:
    """Writes files of the layout below `root`."""

    root: Path

    def table(
        self,
        path: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        *,
        gzipped: bool = True,
    ) -> Path:
        """A CSV file, gzipped (then `.gz` is added to its name) or plain."""
        text = io.StringIO()
        csv.writer(text).writerows([list(columns), *rows])
        target = self.root / (f"{path}.gz" if gzipped else path)
        target.parent.mkdir(parents=True, exist_ok=True)
        content = text.getvalue().encode()
        target.write_bytes(gzip.compress(content, mtime=0) if gzipped else content)
        return target

    def sweep(
        self,
        op: str,
        rows: Sequence[Sequence[Any]],
        *,
        device: str = V100,
        columns: Sequence[str] = VECTOR,
        file: str | None = None,
        gzipped: bool = True,
    ) -> Path:
        """A sweep; a row is (latency in ms, sizes…)."""
        path = file or f"data/dataset/train/collect/{op}/p2.1.0/{device}.csv"
        head = ("OPName", "Latency", "Device", "Torch Version", "CUDNN Version")
        body = [(op, row[0], device, "p2.1.0", 8902, *row[1:]) for row in rows]
        return self.table(path, (*head, *columns), body, gzipped=gzipped)

    def label(self, device: str, name: str, value: object) -> Path:
        """Measured step (JSON)."""
        return self._json(f"label/{FOLDER.get(device, device)}/{name}.json", value)

    def label_ops(self, device: str, name: str, rows: Sequence[Sequence[Any]]) -> Path:
        """Ops measured inside a step; a row is (name, forward ms, backward ms)."""
        body = [(n, forward + backward, forward, backward, 0) for n, forward, backward in rows]
        columns = ("Name", "latency", "fw_latency", "bw_latency", "acc_latency")
        return self.table(f"label/{FOLDER.get(device, device)}/{name}.csv", columns, body)

    def graph(self, name: str, nodes: Sequence[Node]) -> Path:
        """Op graph."""
        columns = (
            "Name", "OpName", "FwOps", "BwOps", "AccOps", "Prev", "Next", "InputShapes",
            "OutputShape",
        )  # fmt: skip
        body = [
            (n.name, n.op, n.fw, n.bw, "[]", str(set(n.prev)), "set()", n.inputs, n.output)
            for n in nodes
        ]
        return self.table(f"results/opgraph/{name}.csv", columns, body)

    def raw_graph(self, name: str, nodes: Sequence[Node]) -> Path:
        """Raw graph: the module stack tells which nodes are in the layer."""
        layer = "{'nn_module_stack': OrderedDict([('transformer.h.0', <class 'Block'>)])}"
        around = "{'nn_module_stack': OrderedDict([('transformer', <class 'Model'>)])}"
        body = [
            (n.name, str(dict.fromkeys(n.prev)), layer if n.in_layer else around, "[True]",
             "torch.float32")
            for n in nodes
        ]  # fmt: skip
        columns = ("Name", "_input_nodes", "meta", "input_contiguous", "dtype")
        return self.table(f"results/opgraph_raw/{name}.csv", columns, body)

    def prediction(self, device: str, peer: str, name: str, value: object) -> Path:
        """What a peer predicted for a step."""
        folder = f"results/prediction/{FOLDER.get(device, device)}/{peer}"
        return self._json(f"{folder}/{name}.json", value)

    def prediction_ops(self, device: str, peer: str, name: str, nodes: Sequence[Node]) -> Path:
        """What a peer predicted for each op: 0.1 ms forward, 0.2 ms backward."""
        folder = f"results/prediction/{FOLDER.get(device, device)}/{peer}"
        columns = ("Name", "OpName", "fw_latency", "bw_latency")
        return self.table(
            f"{folder}/{name}.csv", columns, [(n.name, n.op, 0.1, 0.2) for n in nodes]
        )

    def _json(self, path: str, value: object) -> Path:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(value if isinstance(value, str) else json.dumps(value, indent=4))
        return target

    def sweeps(self) -> None:
        """Small sweeps of every kind of op."""
        self.sweep("bmm", [(0.5, 13, 27, 15, 29), (2.0, 4, 64, 32, 16)], columns=GEMM)
        self.sweep("linear", [(0.5, 1, 1024, 256, 512)], columns=GEMM)
        self.sweep("linear", [(0.4, 1, 64, 32, 16), (50.0, 1, 4096, 1024, 4096)], device=P4,
                   columns=GEMM)  # fmt: skip
        self.sweep("linear", [(8.0, 1, 1024, 2560, 2560)], device=L4, columns=GEMM,
                   file="data/dataset/test/linear.csv")  # fmt: skip
        self.sweep("add", [(0.04, 128, 256)])
        self.sweep("mulu", [(0.03, 128, 256)])
        self.sweep("ln", [(0.05, 60, 272)])
        self.sweep("softmax", [(0.05, 60, 272)])
        self.sweep("conv", [(2.7, 38, 893, 326, 3, 5, 1, 1), (1.0, 8, 64, 128, 7, 224, 2, 3)],
                   columns=CONV)  # fmt: skip
        mi100 = "AMD Instinct MI100"
        amd = f"data/dataset_amd/train/collect/tanh/p2.4.1/{mi100}.csv"
        self.sweep("tanh", [(0.06, 128, 256)], device=mi100, file=amd)

    def models(self) -> None:
        """A step in training and one for inference, with graphs, ops and predictions."""
        nodes = toy_nodes()
        for name, own, label in (
            (TRAIN, nodes, TRAIN_LABEL), (INFER, inference(nodes), INFER_LABEL),
        ):  # fmt: skip
            self.graph(name, own)
            self.raw_graph(name, own)
            self.label(V100, name, label)
            backward = 0.2 if name == TRAIN else 0.0
            self.label_ops(V100, name, [(n.name, 0.1, backward) for n in own if n.op != "misc"])
            for peer in PEERS:
                self.prediction(V100, peer, name, {**label, "e2e_latency": 5.0})
                self.prediction_ops(V100, peer, name, own)

    def complete(self) -> Path:
        """All of it; the root."""
        self.sweeps()
        self.models()
        return self.root


@pytest.fixture(scope="session")
def aiconfigurator() -> ModuleType:
    """`samples_aiconfigurator`: rows and tables in the layout of that source."""
    path = Path(__file__).with_name("samples_aiconfigurator.py")
    spec = importlib.util.spec_from_file_location("samples_aiconfigurator", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def aiconfigurator_root(aiconfigurator: ModuleType, tmp_path: Path) -> Path:
    """Root of a complete layout of aiconfigurator."""
    return Path(aiconfigurator.complete(tmp_path / "aiconfigurator"))


@pytest.fixture
def layout(tmp_path: Path) -> LayoutWriter:
    """Writer of a layout below `tmp_path/neusight`."""
    return LayoutWriter(tmp_path / "neusight")


@pytest.fixture(scope="session")
def complete_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Root of a complete layout, written once: do not change it."""
    return LayoutWriter(tmp_path_factory.mktemp("complete") / "neusight").complete()


@pytest.fixture
def nodes() -> list[Node]:
    """Nodes of the toy model in training."""
    return toy_nodes()


@pytest.fixture(scope="session")
def samples_own() -> ModuleType:
    """`samples_own`: rows in the layout of what the project measured itself."""
    path = Path(__file__).with_name("samples_own.py")
    spec = importlib.util.spec_from_file_location("samples_own", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def own_root(tmp_path: Path, samples_own: ModuleType) -> Path:
    """Rows of one processor: kernels alone, two steps, kernels inside them."""
    models = {"llama-4x384": {"batch": 2, "seq": 128}, "mlp-4x512": {"batch": 256}}
    root: Path = samples_own.own_sample(tmp_path, models)
    return root
