"""The graph records: what a program computes (`OpGraph`), what a device launches (`KernelGraph`).

Both are plain frozen data. Front ends write an `OpGraph`; `predictor.lower` turns it into a
`KernelGraph`; everything after that sees kernels only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "optimizer")

Role = Literal["input", "parameter", "buffer", "activation", "gradient", "state"]
Layout = Literal["contiguous", "channels_last", "strided"]

HALVES: tuple[str, ...] = ("fp16", "bf16")
"""The half-precision dtypes: same bytes, same units, same rates."""
DTYPE_BYTES: Mapping[str, float] = {
    "fp64": 8, "fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "fp4": 0.5,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of one element by dtype name (the names used everywhere in this library)."""
_AUTOCAST = "amp-"


def autocast_of(dtype: str) -> str | None:
    """The dtype that autocast computes in (`amp-fp16`: fp16); None without autocast."""
    return dtype.removeprefix(_AUTOCAST) if dtype.startswith(_AUTOCAST) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor as an op sees it."""

    shape: tuple[int, ...]
    dtype: str
    """A key of `DTYPE_BYTES`."""
    storage_id: int
    """Identity of the storage within the graph: views and tied weights share it."""
    storage_bytes: int
    """Bytes of the whole storage behind the tensor."""
    touched_bytes: int
    """Distinct bytes that reading this tensor once touches: an expanded view counts its storage
    once, a slice counts the slice."""
    role: Role = "activation"
    layout: Layout = "contiguous"

    @property
    def numel(self) -> int:
        """Number of elements, expanded dimensions included."""
        n = 1
        for size in self.shape:
            n *= size
        return n


@dataclass(frozen=True, slots=True, kw_only=True)
class OpNode:
    """One call of the framework: an aten op, or one of the composite ops of `predictor.capture`."""

    op: str
    """`aten.mm`, `aten.native_layer_norm`, …; composites have the prefix `predictor.`."""
    phase: Phase
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    attrs: Mapping[str, object] = field(default_factory=dict)
    """Non-tensor arguments that matter (JSON-able values only)."""
    deps: tuple[int, ...] = ()
    """Indices of the nodes that produce its inputs."""
    module: str = ""
    """Dotted path of the module that made the call, empty when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What was captured, echoed to the user."""

    name: str
    mode: Literal["infer", "train"]
    parameters: int
    """Distinct parameters (tied weights once)."""
    trainable_parameters: int
    parameters_bytes: int
    buffers_bytes: int
    inputs_bytes: int
    batch: int | None
    tokens: int | None
    """Batch times sequence length where the input is a batch of token ids, else None."""
    dtype: str
    """Parameter dtype, or `amp-fp16` / `amp-bf16` under autocast."""
    optimizer: str | None = None
    source: Literal["pytorch", "onnx", "stablehlo"] = "pytorch"
    """What the program is written in, which decides what runs it unless the user says."""
    trainable_bytes: int = 0
    """Bytes of the parameters that get a gradient."""
    warnings: tuple[str, ...] = ()
    recorded_us: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Of a step that a profiler recorded: its time as measured (`step`), and kernel time by what
    becomes of it in an estimate: `estimated`, of this `opaque`, `unknown` (calls that take no time)
    and each kind that is left out (`collectives`, …). Empty for other programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """A captured program: ops in execution order with dependencies."""

    workload: Workload
    nodes: tuple[OpNode, ...]
    lighter: OpGraph | None = None
    """The same program with every branch that values decide on its cheaper side; the graph itself
    takes the other one. None where there is no such branch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One launched kernel (or the few of one library call that cannot be told apart)."""

    op: str
    """A key of `predictor.graph.ops.OPS`."""
    phase: Phase
    dims: Mapping[str, int]
    """The dimensions that `OPS[op].dims` names."""
    dtype: str
    """Dtype of the arithmetic operands (a matmul under autocast: `bf16`)."""
    flops: float
    """Arithmetic the kernel needs (causal attention: pairs the mask leaves); bounds its time."""
    read_bytes: float
    write_bytes: float
    name: str = ""
    """What the user reads: `aten.addmm`, `attention`, `adamw`, …."""
    module: str = ""
    launches: int = 1
    """Dependent launches inside (steps of a recurrent kernel, chunks of a multi-tensor one)."""
    matmul_flops: float = 0.0
    """FLOPs by the published dense convention, matrix ops only: what a report states."""
    repeats: int = 1
    """Times that the step runs it: a kernel of a loop's body stands once. All other figures are of
    one run."""

    @property
    def bytes(self) -> float:
        """Compulsory traffic: reads plus writes."""
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelGraph:
    """The launched kernels in stream order, with data edges."""

    workload: Workload
    kernels: tuple[Kernel, ...]
    edges: tuple[tuple[int, int], ...]
    """(producer, consumer) pairs, producer < consumer."""
    edge_bytes: tuple[float, ...]
    """Bytes carried by each edge."""
    host_ops: Mapping[str, int] = field(default_factory=dict)
    """Framework calls by phase (views included): what the host must issue."""
    peak_activation_bytes: float = 0.0
    """Largest live sum of activations and gradients of activations."""
    peak_step_bytes: float = 0.0
    """Largest live sum of activations, gradients of parameters and temporaries of the optimizer."""
    optimizer_bytes: int | None = None
    """Persistent state of the captured optimizer; None without an update."""
    replayed: bool = False
    """Whether the host replays each phase with one launch (CUDA graphs)."""
    issued: Literal["host", "device"] = "host"
    """Who launches the kernels: the framework one by one, or the device from one compiled program,
    which costs the host no time a launch."""
    counted_flops: float | None = None
    """FLOPs of the program as its own compiler counts them, where that is not the kernels' sum."""
