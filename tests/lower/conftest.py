"""`program`: a captured program written by hand, for lowering without the capture."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from predictor.graph.ir import (
    DTYPE_BYTES,
    KernelGraph,
    Layout,
    OpGraph,
    OpNode,
    Phase,
    Role,
    TensorSpec,
    Workload,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "jax_programs"))
from predictor.lower.eager import lower_eager


@dataclass
class Program:
    """Tensors with storages of their own, and calls on them with dependencies by storage."""

    nodes: list[OpNode] = field(default_factory=list)
    _storages: int = 0
    _writers: dict[int, int] = field(default_factory=dict)

    def tensor(
        self,
        *shape: int,
        dtype: str = "fp32",
        role: Role = "activation",
        layout: Layout = "contiguous",
        of: TensorSpec | None = None,
        touched: int | None = None,
    ) -> TensorSpec:
        """A tensor with a new storage, or a view of another one's."""
        numel = 1
        for size in shape:
            numel *= size
        size_bytes = int(numel * DTYPE_BYTES[dtype])
        if of is None:
            self._storages += 1
        return TensorSpec(
            shape=shape,
            dtype=dtype,
            storage_id=self._storages if of is None else of.storage_id,
            storage_bytes=size_bytes if of is None else of.storage_bytes,
            touched_bytes=size_bytes if touched is None else touched,
            role=role if of is None else of.role,
            layout=layout,
        )

    def call(
        self,
        op: str,
        inputs: Sequence[TensorSpec],
        *outputs: TensorSpec,
        phase: Phase = "forward",
        module: str = "",
        **attrs: object,
    ) -> None:
        """Append a call."""
        deps = {self._writers[s.storage_id] for s in inputs if s.storage_id in self._writers}
        for spec in outputs:
            self._writers[spec.storage_id] = len(self.nodes)
        self.nodes.append(
            OpNode(
                op=op,
                phase=phase,
                inputs=tuple(inputs),
                outputs=outputs,
                attrs=attrs,
                deps=tuple(sorted(deps)),
                module=module,
            )
        )

    def graph(self) -> OpGraph:
        """The program so far."""
        workload = Workload(
            name="test", mode="train", parameters=0, trainable_parameters=0, parameters_bytes=0,
            buffers_bytes=0, inputs_bytes=0, batch=None, tokens=None, dtype="fp32",
        )  # fmt: skip
        return OpGraph(workload=workload, nodes=tuple(self.nodes))

    def lower(self, *, allow_opaque: bool = False) -> KernelGraph:
        """Its kernels."""
        return lower_eager(self.graph(), allow_opaque=allow_opaque)


@pytest.fixture
def program() -> Program:
    return Program()
