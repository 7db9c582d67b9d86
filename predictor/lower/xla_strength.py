"""Products that XLA computes without a matrix unit: matrix times vector, and outer products.

Where one factor has nothing but batch and summed axes, the product is a multiplication by that
factor and a sum over rows or columns, which fuses with what stands around it; without a sum it is
the multiplication alone. On GPUs larger ones stay products, for a kernel of the library or Triton.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from predictor.cost.hlo import numbers
from predictor.graph.ir import DTYPE_BYTES, OpNode, TensorSpec
from predictor.lower.xla_backends import Backend

PRODUCT_FLOPS = "product_flops"
"""Attribute of the operation that ends such a product: the FLOPs of the matrix product it was."""
MOST_ON_A_GPU = 10_000_000
"""Multiply-adds from which XLA for GPUs keeps a product of a matrix and a vector."""


def without_vector_products(nodes: Sequence[OpNode], backend: Backend) -> list[OpNode]:
    """The nodes with such products written out, on backends that do so."""
    if not backend.writes_out_vectors:
        return list(nodes)
    storage = max((s.storage_id for n in nodes for s in (*n.inputs, *n.outputs)), default=0)
    found: list[OpNode] = []
    for node in nodes:
        plan = _plan(node, backend) if node.op == "stablehlo.dot_general" else None
        if plan is None:
            found.append(node)
            continue
        made = _written_out(node, plan, storage)
        storage += len(made)
        found += made
    return found


class _Plan:
    """Axes of the elementwise product: batch, then free axes of left and right, then summed."""

    def __init__(self, node: OpNode) -> None:
        left, right = (spec.shape for spec in node.inputs)
        self.batch = (numbers(node, "lhs_batch"), numbers(node, "rhs_batch"))
        self.summed = (
            numbers(node, "lhs_contract", (len(left) - 1,)), numbers(node, "rhs_contract", (0,)),
        )  # fmt: skip
        self.free = tuple(
            [i for i in range(len(shape)) if i not in batch and i not in summed]
            for shape, batch, summed in zip((left, right), self.batch, self.summed, strict=True)
        )
        self.sizes = (left, right)

    def long(self, side: int) -> bool:
        """Whether a factor has free axes."""
        return math.prod(self.sizes[side][i] for i in self.free[side]) > 1

    def shape(self) -> tuple[int, ...]:
        """Of the elementwise product."""
        left, right = self.sizes
        return (
            *(left[i] for i in self.batch[0]), *(left[i] for i in self.free[0]),
            *(right[i] for i in self.free[1]), *(left[i] for i in self.summed[0]),
        )  # fmt: skip

    def axes(self, side: int) -> list[int]:
        """Where each axis of a factor stands in the elementwise product."""
        batch, left, right = len(self.batch[0]), len(self.free[0]), len(self.free[1])
        first_free = batch + (left if side else 0)
        places = {axis: i for i, axis in enumerate(self.batch[side])}
        places |= {axis: first_free + i for i, axis in enumerate(self.free[side])}
        places |= {axis: batch + left + right + i for i, axis in enumerate(self.summed[side])}
        return [places[axis] for axis in range(len(self.sizes[side]))]


def _plan(node: OpNode, backend: Backend) -> _Plan | None:
    if len(node.inputs) != 2 or any(s.dtype not in _FLOATS for s in node.inputs):
        return None
    plan = _Plan(node)
    outer = math.prod(plan.sizes[0][i] for i in plan.summed[0]) == 1
    vectors = [not plan.long(0), not plan.long(1)]
    if not outer and not any(vectors):
        return None
    large = backend.name == "gpu" and math.prod(plan.shape()) > MOST_ON_A_GPU
    return None if large and not outer and not all(vectors) else plan


_FLOATS = ("fp32", "bf16", "fp16", "fp64")


def _written_out(node: OpNode, plan: _Plan, storage: int) -> list[OpNode]:
    """Broadcasts of both factors where needed, the multiplication, and the sum."""
    loop = {name: node.attrs[name] for name in ("trips", "loop") if name in node.attrs}
    shape = plan.shape()
    found: list[OpNode] = []
    factors: list[TensorSpec] = []
    for side, spec in enumerate(node.inputs):
        axes = plan.axes(side)
        if spec.shape == shape and axes == sorted(axes):
            factors.append(spec)
            continue
        spread = _spec(spec.dtype, shape, storage + len(found) + 1)
        attrs = {"broadcast_dimensions": axes, **loop}
        found.append(
            replace(
                node,
                op="stablehlo.broadcast_in_dim",
                inputs=(spec,),
                outputs=(spread,),
                attrs=attrs,
            )
        )
        factors.append(spread)
    ends = {name: node.attrs[name] for name in ("escapes", "kept") if name in node.attrs}
    ends[PRODUCT_FLOPS] = 2.0 * math.prod(shape)
    out = node.outputs[0]
    summed = len(plan.summed[0])
    last = not summed or math.prod(shape[-summed:]) == 1
    product = out if last else _spec(out.dtype, shape, storage + len(found) + 1)
    found.append(
        replace(
            node,
            op="stablehlo.multiply",
            inputs=tuple(factors),
            outputs=(product,),
            attrs={**loop, **(ends if last else {})},
        )
    )
    if not last:
        dimensions = list(range(len(shape) - summed, len(shape)))
        attrs = {"dimensions": dimensions, "body": ["add"], **loop, **ends}
        found.append(
            replace(node, op="stablehlo.reduce", inputs=(product,), outputs=(out,), attrs=attrs)
        )
    return found


def _spec(dtype: str, shape: tuple[int, ...], storage: int) -> TensorSpec:
    size = int(math.prod(shape) * DTYPE_BYTES[dtype])
    return TensorSpec(
        shape=shape, dtype=dtype, storage_id=storage, storage_bytes=size, touched_bytes=size
    )
