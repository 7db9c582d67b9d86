"""StableHLO text, bytecode and modules in memory, read into records with jaxlib's MLIR bindings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from predictor.capture.failures import first_line
from predictor.capture.refusals import no_file
from predictor.capture.stablehlo.attributes import READINGS
from predictor.capture.stablehlo.records import (
    TOKEN,
    Argument,
    Body,
    Instr,
    Module,
    TensorType,
    Value,
)
from predictor.errors import CaptureError, MissingExtraError, UnknownTargetError

BYTECODE = b"ML\xefR"
"""First bytes of MLIR bytecode."""
PORTABLE = b"StableHLO"
"""Producer that portable artifacts (`jax.export`) carry in their head."""
MAX_DEPTH = 200
"""Regions inside each other; no front end comes near, a hostile file does."""
MAX_BRACKETS = 1000
MAX_ELEMENTS = 2**48
"""Elements of a tensor; a thousand times what any device holds."""
ELEMENT_TYPES: Mapping[str, str] = {
    "f64": "fp64", "f32": "fp32", "tf32": "fp32", "f16": "fp16", "bf16": "bf16", "i1": "bool",
    "i64": "int64", "ui64": "int64", "i32": "int32", "ui32": "int32", "i16": "int16",
    "ui16": "int16", "i8": "int8", "ui8": "uint8", "i4": "int8", "ui4": "uint8", "i2": "int8",
    "ui2": "uint8", "index": "int64", "complex<f32>": "complex64", "complex<f64>": "complex128",
}  # fmt: skip
"""Library dtype of each MLIR element type; `f8…` and `f4…` are fp8 and fp4."""
_RETURNS = frozenset({"func.return", "stablehlo.return", "sdy.return", "return"})


def bindings() -> Any:
    """The module `jaxlib.mlir.ir`.

    Raises:
        MissingExtraError: jax is not installed.
    """
    try:
        from jaxlib.mlir import ir
    except ImportError as error:
        raise MissingExtraError(
            "StableHLO is read with jaxlib: pip install 'latency-predictor[jax]'"
        ) from error
    return ir


def read_file(path: Path) -> Module:
    """The module in a file of StableHLO text or bytecode.

    Raises:
        UnknownTargetError: no such file, or it is empty.
        CaptureError: it is not StableHLO, or uses something that has no fixed size.
        MissingExtraError: jax is not installed.
    """
    bindings()
    if not path.is_file():
        raise no_file(path, "StableHLO is text or bytecode, written by JAX (docs/jax.md)")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UnknownTargetError(f"{path} cannot be read: {error.strerror}") from None
    if not data.strip():
        raise UnknownTargetError(f"{path} is empty")
    return read_program(data, name=path.name)


def read_program(data: bytes | str, *, name: str) -> Module:
    """The module of StableHLO text or bytecode; see `read_file` for what is raised."""
    ir = bindings()
    from jax._src.interpreters.mlir import make_ir_context

    raw = data if isinstance(data, bytes) else data.encode()
    context = make_ir_context()
    said: list[str] = []

    def hear(diagnostic: Any) -> bool:
        """Keep what MLIR would print by itself."""
        said.append(str(diagnostic.message))
        return True

    handler: Any = context.attach_diagnostic_handler(hear)
    try:
        if raw.startswith(BYTECODE) and PORTABLE in raw[:32]:
            from jaxlib.mlir.dialects import stablehlo

            module = stablehlo.deserialize_portable_artifact(context, raw)
        elif raw.startswith(BYTECODE):
            module = ir.Module.parse(raw, context)
        else:
            text = raw.decode()
            _check_depth(raw, name)
            module = ir.Module.parse(text, context)
    except UnicodeDecodeError:
        raise CaptureError(
            f"{name} is neither StableHLO text nor MLIR bytecode: write it with "
            "`lowered.as_text()` or jax.export"
        ) from None
    except (ir.MLIRError, ValueError, RuntimeError) as error:
        reason = "".join(said[:1]).partition("\n")[0][:300] or _reason(error)
        raise CaptureError(
            f"{name} is not StableHLO that this jaxlib reads: {reason}; write it with "
            "`lowered.as_text()` or jax.export"
        ) from None
    finally:
        handler.detach()
    return module_records(module, name=name)


def _check_depth(raw: bytes, name: str) -> None:
    """Refuse brackets so deep inside each other that the parser's own stack would run over."""
    data = np.frombuffer(raw, dtype=np.uint8)
    steps = np.zeros(len(data), dtype=np.int8)
    for opening, closing in (b"{}", b"()", b"[]"):
        steps += (data == opening).astype(np.int8) - (data == closing).astype(np.int8)
    deepest = int(np.cumsum(steps, dtype=np.int64).max(initial=0))
    if deepest > MAX_BRACKETS:
        raise CaptureError(
            f"{name}: brackets nest {deepest:,} deep, {MAX_BRACKETS} are allowed: no front end "
            "writes such a program"
        )


def _reason(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "error:" in line]
    return lines[0][:300] if lines else first_line(error)


def module_records(module: Any, *, name: str) -> Module:
    """Records of an MLIR module in memory.

    Raises:
        CaptureError: no entry function, a dynamic shape, or an unknown element type.
    """
    return _Reader(name).module(module)


class _Reader:
    """Turns MLIR objects into records; equal types are turned once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._types: dict[Any, TensorType] = {}
        self._values: dict[Any, Value] = {}

    def module(self, module: Any) -> Module:
        functions: dict[str, Body] = {}
        meshes: dict[str, Mapping[str, int]] = {}
        public: list[Any] = []
        for held in module.body.operations:
            op = held.operation
            if op.name == "sdy.mesh":
                meshes[op.attributes["sym_name"].value] = mesh_axes(str(op.attributes["mesh"]))
            if op.name != "func.func":
                continue
            symbol = op.attributes["sym_name"].value
            if not len(op.regions[0].blocks):
                raise CaptureError(f"{self.name}: function @{symbol} has no body")
            functions[symbol] = self.body(op.regions[0], 0)
            if symbol == "main" or not _is_private(op):
                public.append(op)
        entry = self.entry(public, list(functions))
        attributes = module.operation.attributes
        return Module(
            name=self.name,
            functions=functions,
            main=functions[entry.attributes["sym_name"].value],
            arguments=self.arguments(entry),
            result_shardings=tuple(
                _text(row, "sdy.sharding", "mhlo.sharding") for row in _rows(entry, "res_attrs")
            ),
            partitions=_count(attributes, "mhlo.num_partitions"),
            replicas=_count(attributes, "mhlo.num_replicas"),
            meshes=meshes,
        )

    def entry(self, public: Sequence[Any], names: Sequence[str]) -> Any:
        """The function that the program is: @main, or the only one that can be called."""
        main = [op for op in public if op.attributes["sym_name"].value == "main"]
        if main or len(public) == 1:
            return (main or public)[0]
        if not names:
            raise CaptureError(f"{self.name} holds no function: a program has a @main")
        listed = ", ".join(f"@{name}" for name in names[:8])
        which = "more than one public function" if public else "private functions alone"
        raise CaptureError(
            f"{self.name} holds {which} ({listed}) and no @main: rename the one that is the program"
        )

    def arguments(self, entry: Any) -> tuple[Argument, ...]:
        block = entry.regions[0].blocks[0]
        rows = _rows(entry, "arg_attrs")
        return tuple(
            Argument(
                name=_name(getattr(argument, "location", None)),
                sharding=_text(row, "sdy.sharding", "mhlo.sharding"),
                updated="tf.aliasing_output" in row or "jax.buffer_donor" in row,
                replicated="mhlo.is_same_data_across_replicas" in row,
            )
            for argument, row in zip(
                block.arguments, rows or [{}] * len(block.arguments), strict=True
            )
        )

    def body(self, region: Any, depth: int) -> Body:
        """The one block of a region."""
        if depth > MAX_DEPTH:
            raise CaptureError(f"{self.name}: regions nest more than {MAX_DEPTH} deep")
        if not len(region.blocks):
            return Body(args=[])
        block = region.blocks[0]
        body = Body(args=[self.fresh(argument) for argument in block.arguments])
        for held in block.operations:
            op = held.operation
            if op.name in _RETURNS:
                body.results = [self._values[value] for value in op.operands]
                break
            body.instrs.append(self.instr(op, depth))
        return body

    def instr(self, op: Any, depth: int) -> Instr:
        name = op.name
        reading = READINGS.get(name)
        operands = [self._values[value] for value in op.operands]
        try:
            attrs = {} if reading is None else reading(op.attributes)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CaptureError(
                f"{self.name}: {name} has attributes of an unknown form ({first_line(error)})"
            ) from None
        return Instr(
            op=name,
            operands=operands,
            results=[self.fresh(value) for value in op.results],
            attrs=attrs,
            bodies=[self.body(region, depth + 1) for region in op.regions],
            where=_name(op.location),
        )

    def fresh(self, value: Any) -> Value:
        made = Value(self.type(value.type))
        self._values[value] = made
        return made

    def type(self, kind: Any) -> TensorType:
        found = self._types.get(kind)
        if found is None:
            found = self._types[kind] = self.read_type(kind)
        return found

    def read_type(self, kind: Any) -> TensorType:
        text = str(kind)
        if text == "!stablehlo.token":
            return TensorType((), TOKEN)
        if not text.startswith("tensor<"):
            raise CaptureError(
                f"{self.name} has values of type {text[:80]}: only tensors of fixed size can be "
                "estimated"
            )
        if not kind.has_static_shape:
            raise CaptureError(
                f"{self.name} has a dynamic shape, {text[:80]}: give every size when the program "
                "is lowered (jax.export with plain shapes)"
            )
        found = TensorType(tuple(kind.shape), self.dtype(str(kind.element_type)))
        if found.numel > MAX_ELEMENTS:
            raise CaptureError(
                f"{self.name} has a tensor of {found.numel:.3g} elements, {text[:80]}: no device "
                "holds it; check the sizes that the program was lowered with"
            )
        return found

    def dtype(self, element: str) -> str:
        known = ELEMENT_TYPES.get(element)
        if known is not None:
            return known
        if element.startswith(("f8", "f6")):
            return "fp8"
        if element.startswith("f4"):
            return "fp4"
        raise CaptureError(
            f"{self.name} has elements of type {element[:80]}, which has no cost vocabulary; "
            f"known: {', '.join(ELEMENT_TYPES)}, f8…, f4…"
        )


def mesh_axes(text: str) -> dict[str, int]:
    """Axis sizes of a mesh attribute: `#sdy.mesh<["data"=4, "model"=2]>`."""
    inside = text[text.find("[") + 1 : text.rfind("]")]
    axes = (part.split("=") for part in inside.split(",") if "=" in part)
    return {name.strip().strip('"'): int(size) for name, size in axes}


def _is_private(op: Any) -> bool:
    held = op.attributes
    return "sym_visibility" in held and str(held["sym_visibility"].value) == "private"


def _rows(entry: Any, name: str) -> list[Any]:
    return list(entry.attributes[name]) if name in entry.attributes else []


def _text(row: Any, *names: str) -> str:
    for name in names:
        if name in row:
            value = row[name]
            return str(getattr(value, "value", value))
    return ""


def _count(attributes: Any, name: str) -> int:
    return int(attributes[name].value) if name in attributes else 1


def _name(location: Any) -> str:
    """The name that a location carries; text written without debug information has none."""
    return str(getattr(location, "name_str", ""))
