"""Sizes that a model leaves open: bound by name, or listed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import TypeProto, ValueInfoProto

from predictor.errors import CaptureError

BATCH_NAMES: frozenset[str] = frozenset(
    {"batch", "batch_size", "batchsize", "batch_dim", "n", "b", "bs", "num_batch", "batch_axis"}
)
SEQ_NAMES: frozenset[str] = frozenset(
    {"seq", "sequence", "seq_len", "seqlen", "seq_length", "sequence_length", "sequence_len",
     "max_seq_len", "tokens", "num_tokens", "length", "time", "t", "s", "l", "encoder_sequence",
     "encoder_sequence_length"}
)  # fmt: skip
"""Names of a symbolic size, lower case, that `batch` and `seq` stand for."""


@dataclass(slots=True)
class Sizes:
    """Values of symbolic sizes."""

    given: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    missing: dict[str, list[str]] = field(default_factory=dict)
    """Unset names, with the places where they stand."""

    def value(self, name: str) -> int | None:
        """The value of a name, noting that it is used."""
        found = self.given.get(name)
        if found is not None:
            self.used.add(name)
        return found


def input_shape(info: ValueInfoProto, tensor: TypeProto.Tensor, sizes: Sizes) -> list[int]:
    """Sizes of an input; those that nothing sets are noted as missing and given as 1."""
    shape: list[int] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value"):
            if dim.dim_value < 0 and (dim.dim_value != -1):
                raise CaptureError(f"input {info.name!r} declares size {dim.dim_value}")
            if dim.dim_value != -1:
                own = sizes.value(f"{info.name}.{axis}")
                if own not in (None, dim.dim_value):
                    raise CaptureError(
                        f"axis {axis} of input {info.name!r} is fixed at {dim.dim_value}, not "
                        f"{own}: export the model with that axis dynamic"
                    )
                shape.append(dim.dim_value)
                continue
        place = f"{info.name}.{axis}"
        name = dim.dim_param or place
        own, value = sizes.value(place), sizes.value(name)
        if own is not None and value not in (None, own):
            raise CaptureError(
                f"axis {axis} of input {info.name!r} is sized twice: {place}={own} and "
                f"{name}={value}: leave one out"
            )
        value = value if own is None else own
        if value is None:
            sizes.missing.setdefault(name, []).append(f"{info.name}[{axis}]")
        shape.append(1 if value is None else value)
    return shape


def declared_shape(tensor: TypeProto.Tensor, sizes: Sizes) -> tuple[int, ...] | None:
    """Sizes of a tensor inside the graph, None where some are open."""
    if not tensor.HasField("shape"):
        return None
    out: list[int] = []
    for dim in tensor.shape.dim:
        value: int | None = dim.dim_value if dim.HasField("dim_value") else None
        if value is None and dim.dim_param:
            value = sizes.value(dim.dim_param)
        if value is None or value < 0:
            return None
        out.append(value)
    return tuple(out)


def check_sizes(sizes: Sizes, name: str, inputs: Sequence[ValueInfoProto]) -> None:
    """Every open size must be set.

    Raises:
        CaptureError: lists those that are not.
    """
    if sizes.missing:
        listed = "; ".join(f"{k} ({', '.join(v[:3])})" for k, v in sizes.missing.items())
        flags = " ".join(f"--dim {k}=N" for k in sizes.missing)
        raise CaptureError(
            f"{name} leaves sizes open: {listed}. Set them: {flags} (dims={{name: n}} in Python)"
        )


def check_used(sizes: Sizes, asked: Iterable[str], name: str, known: Sequence[str]) -> None:
    """Every size that was given must be one of the model's.

    Raises:
        CaptureError: names the one that is not, and what there is.
    """
    for key in asked:
        if key not in sizes.used:
            near = difflib.get_close_matches(key, known, n=3)
            there = ", ".join(near or known[:12]) or "none"
            raise CaptureError(f"{name} has no open size {key!r}; there: {there}")


def open_names(inputs: Sequence[ValueInfoProto]) -> dict[str, list[tuple[str, int]]]:
    """Open sizes of the inputs: name, and where it stands."""
    found: dict[str, list[tuple[str, int]]] = {}
    for info in inputs:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value != -1:
                continue
            name = dim.dim_param or f"{info.name}.{axis}"
            found.setdefault(name, []).append((info.name, axis))
    return found


def with_usual_names(
    given: Mapping[str, int],
    inputs: Sequence[ValueInfoProto],
    *,
    batch: int | None,
    seq: int | None,
    name: str,
) -> dict[str, int]:
    """`given` and what `batch` and `seq` stand for.

    `batch` is the one open size with a usual name of batches, else the open first axis that all
    inputs share; `seq` the one with a usual name of sequences, else the open second axis.

    Raises:
        CaptureError: no such size, or several.
    """
    out = dict(given)
    there = open_names(inputs)
    for flag, value, usual, axis in (
        ("batch", batch, BATCH_NAMES, 0), ("seq", seq, SEQ_NAMES, 1),
    ):  # fmt: skip
        if value is None:
            continue
        found = [n for n in there if n.lower() in usual]
        if not found:
            found = [
                n for n, places in there.items()
                if all(at == axis for _, at in places) and n.lower() not in BATCH_NAMES | SEQ_NAMES
            ]  # fmt: skip
        twice = next((n for n in found if n in given), None)
        if twice is not None and len(found) == 1:
            if given[twice] == value:
                continue
            raise CaptureError(
                f"--{flag} {value} and --dim {twice}={given[twice]} size the same axis of {name}: "
                "leave one out"
            )
        found = [n for n in found if n not in given]
        if len(found) != 1 and flag == "batch" and not found:
            fixed = {
                i.type.tensor_type.shape.dim[0].dim_value
                for i in inputs
                if len(i.type.tensor_type.shape.dim)
                and i.type.tensor_type.shape.dim[0].HasField("dim_value")
            }
            if fixed == {value}:
                continue
            if len(fixed) == 1:
                raise CaptureError(
                    f"{name} is exported for batch {fixed.pop()}, not {value}: export it with a "
                    "dynamic batch axis, or leave --batch out"
                )
        if len(found) != 1:
            listed = ", ".join(there) or "none"
            which = "several" if found else "no"
            raise CaptureError(
                f"--{flag} fits {which} open sizes of {name}: name it with --dim NAME={value}; "
                f"open: {listed}"
            )
        out[found[0]] = value
    return out
