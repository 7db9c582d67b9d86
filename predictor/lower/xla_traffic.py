"""Bytes that a fused kernel moves: what it reads from outside, once, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from predictor.graph.ir import TensorSpec
from predictor.lower.xla_backends import Backend
from predictor.lower.xla_groups import Group
from predictor.lower.xla_program import Hlo, Val


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Of one run of a kernel."""

    read_bytes: float
    write_bytes: float
    tensors: int
    """Tensors of at least a quarter of the kernel's elements that it reads."""


def traffic_of(group: Group, backend: Backend) -> Traffic:
    """What a kernel moves.

    A tensor that is sliced or gathered from counts what is taken, an update in place what changes.
    """
    read, large = 0.0, 0
    numel = max((root.numel for root in group.roots), default=0)
    shares = needed_shares(group)
    readers: dict[int, list[Hlo]] = {}
    for member in group.members:
        for value in {id(v): v for v in member.reads}.values():
            readers.setdefault(id(value), []).append(member)
    for value in group.reads():
        read += _taken_bytes(value, readers[id(value)], backend, shares)
        large += 4 * value.spec.numel >= numel
    write = sum(_written(value, root, backend) for value, root in _results(group))
    return Traffic(read_bytes=read, write_bytes=write, tensors=large)


def _results(group: Group) -> list[tuple[Val, Hlo]]:
    return [(value, root) for root in group.roots for value in root.writes]


def stored(spec: TensorSpec, backend: Backend) -> float:
    """Bytes of a tensor in memory; 0 of a constant that is none."""
    if spec.storage_bytes == 0:
        return 0.0
    return backend.stored_bytes(spec.shape, spec.dtype)


def _taken_bytes(
    value: Val, readers: Sequence[Hlo], backend: Backend, shares: Mapping[int, float]
) -> float:
    """Bytes of a value that members of a kernel read, each as much of it as it needs."""
    whole = stored(value.spec, backend)
    total = 0.0
    for member in readers:
        share = shares.get(id(member), 1.0)
        for place, read in enumerate(member.reads):
            if read is not value:
                continue
            if place == 0 and member.kind in ("slice", "gather"):
                total += share * sum(stored(w.spec, backend) for w in member.writes)
            elif place == 0 and _in_place(member):
                continue
            elif member.kind in ("elementwise", "expensive", "transpose") and share < 1.0:
                total += share * whole
            else:
                return whole
    return min(whole, total)


def needed_shares(group: Group) -> dict[int, float]:
    """Share of each member's result that the kernel needs, 1 where nothing is cut.

    A compiler computes what a slice or gather takes, and not the rest of what it is taken from.
    """
    if not any(m.kind in ("slice", "gather") for m in group.members):
        return {}
    shares: dict[int, float] = {id(root): 1.0 for root in group.roots}
    for member in sorted(group.members, key=lambda m: -m.index):
        if id(member) in shares:
            continue
        need = 0.0
        for value in member.writes:
            for reader in value.readers:
                if id(reader) not in group.inside:
                    continue
                share = shares.get(id(reader), 1.0)
                if reader.kind in ("slice", "gather") and reader.reads[0] is value:
                    share *= reader.numel / max(1, value.spec.numel)
                elif reader.kind not in ("elementwise", "expensive", "transpose"):
                    share = 1.0
                need += share
        shares[id(member)] = min(1.0, need)
    return shares


def _in_place(hlo: Hlo) -> bool:
    return bool(hlo.node.attrs.get("in_place"))


def _written(value: Val, root: Hlo, backend: Backend) -> float:
    if not _in_place(root):
        return stored(value.spec, backend)
    changed = root.node.inputs[1] if root.kind == "update" else root.node.inputs[-1]
    return stored(changed, backend)  # rows of a scatter, the part of an update
