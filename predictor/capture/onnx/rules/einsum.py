"""`Einsum` as PyTorch runs it: operands permuted to a batched product, two at a time."""

from __future__ import annotations

from collections.abc import Sequence

from predictor.capture.onnx.call import Call
from predictor.capture.onnx.rules.pointwise import elementwise
from predictor.capture.onnx.values import Item, Value, numel_of


def einsum(call: Call) -> list[Item]:
    """One equation over any number of operands."""
    operands = call.values()
    left, _, right = str(call.attr("equation", "")).replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise call.wrong(f"equation {left!r} for {len(operands)} operands")
    spelled = [_spelled(call, t, v) for t, v in zip(terms, operands, strict=True)]
    sizes = _sizes(call, spelled, operands)
    out = _wanted(right, spelled, sizes) if "->" in str(call.attr("equation", "")) else None
    if out is None:
        every = "".join(spelled)
        dots = "".join(sorted({c for c in every if c.isdigit()}))
        out = dots + "".join(sorted({c for c in every if every.count(c) == 1 and c.isalpha()}))
    value, labels = operands[0], spelled[0]
    value, labels = _diagonal(call, value, labels, sizes)
    for i, (other, theirs) in enumerate(zip(operands[1:], spelled[1:], strict=True), 2):
        other, theirs = _diagonal(call, other, theirs, sizes)
        later = out + "".join(spelled[i:])
        value, labels = _pair(call, (value, labels), (other, theirs), later, sizes)
    value, labels = _summed(call, value, labels, out, sizes)
    return [_ordered(call, value, labels, out)]


def _spelled(call: Call, term: str, value: Value) -> str:
    """Labels one an axis: axes under an ellipsis are numbered from the right."""
    rest = len(value.shape) - len(term.replace("...", ""))
    if rest < 0 or (rest and "..." not in term) or rest > 9:
        raise call.wrong(f"labels {term!r} for a tensor of rank {len(value.shape)}")
    dots = "".join(str(9 - rest + i) for i in range(rest))
    return term.replace("...", dots)


def _wanted(right: str, spelled: Sequence[str], sizes: dict[str, int]) -> str:
    dots = "".join(sorted({c for c in "".join(spelled) if c.isdigit()}))
    return right.replace("...", dots)


def _sizes(call: Call, spelled: Sequence[str], operands: Sequence[Value]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for labels, value in zip(spelled, operands, strict=True):
        for label, size in zip(labels, value.shape, strict=True):
            before = sizes.get(label, 1)
            if before not in (1, size) and size != 1:
                raise call.wrong(f"label {label!r} is {before} and {size}")
            sizes[label] = max(before, size) if size else 0
    return sizes


def _diagonal(call: Call, value: Value, labels: str, sizes: dict[str, int]) -> tuple[Value, str]:
    """Repeated labels of one operand: a view of its diagonal."""
    distinct = "".join(dict.fromkeys(labels))
    if distinct == labels:
        return value, labels
    shape = [sizes[label] for label in distinct]
    strides = tuple(
        sum(s for own, s in zip(labels, value.strides, strict=True) if own == label)
        for label in distinct
    )
    return call.tape.view("aten.diagonal", value, shape, strides), distinct


def _pair(
    call: Call, first: tuple[Value, str], second: tuple[Value, str], later: str,
    sizes: dict[str, int],
) -> tuple[Value, str]:  # fmt: skip
    """The product of two operands, summed over labels that nothing later needs."""
    (a, la), (b, lb) = first, second
    a, la = _summed(call, a, la, lb + later, sizes)
    b, lb = _summed(call, b, lb, la + later, sizes)
    batch = [c for c in la if c in lb and c in later]
    inner = [c for c in la if c in lb and c not in later]
    mine = [c for c in la if c not in lb]
    theirs = [c for c in lb if c not in la]
    labels = "".join((*batch, *mine, *theirs))
    shape = [sizes[c] for c in labels]
    a = _ordered(call, a, la, "".join((*batch, *mine, *inner)))
    b = _ordered(call, b, lb, "".join((*batch, *inner, *theirs)))
    tape = call.tape
    counts = [numel_of([sizes[c] for c in group]) for group in (batch, mine, inner, theirs)]
    whole_a = tape.expand(a, [sizes[c] for c in (*batch, *mine, *inner)])
    whole_b = tape.expand(b, [sizes[c] for c in (*batch, *inner, *theirs)])
    if not inner and not (mine and theirs):
        lead = tape.reshape(whole_a, (counts[0], counts[1], 1))
        rest = tape.reshape(whole_b, (counts[0], 1, counts[3]))
        return tape.reshape(elementwise(call, "mul", (lead, rest), a.dtype), shape), labels
    lead = tape.reshape(whole_a, (counts[0], counts[1], counts[2]))
    rest = tape.reshape(whole_b, (counts[0], counts[2], counts[3]))
    out = tape.one("aten.bmm", (lead, rest), (counts[0], counts[1], counts[3]), a.dtype)
    return tape.reshape(out, shape), labels


def _summed(
    call: Call, value: Value, labels: str, needed: str, sizes: dict[str, int]
) -> tuple[Value, str]:
    gone = [i for i, c in enumerate(labels) if c not in needed]
    if not gone:
        return value, labels
    shape = [s for i, s in enumerate(value.shape) if i not in gone]
    out = call.tape.one("aten.sum", (value,), shape, value.dtype, {"dim": gone})
    return out, "".join(c for c in labels if c in needed)


def _ordered(call: Call, value: Value, labels: str, wanted: str) -> Value:
    if labels == wanted or set(labels) != set(wanted):
        return value
    return call.tape.permute(value, [labels.index(c) for c in wanted])
