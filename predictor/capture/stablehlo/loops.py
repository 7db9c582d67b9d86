"""How often a `while` runs: its condition against a bound, from a known start by a known step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from predictor.capture.stablehlo.records import Body, Instr, Value
from predictor.errors import CaptureError

Known = Callable[[Value], "int | None"]
"""The integer that a value is known to hold, None when it is not."""

FOLDS: Mapping[str, Callable[[int, int], int]] = {
    "stablehlo.add": lambda a, b: a + b,
    "stablehlo.subtract": lambda a, b: a - b,
    "stablehlo.multiply": lambda a, b: a * b,
    "stablehlo.minimum": min,
    "stablehlo.maximum": max,
}
"""Integer arithmetic that is followed on the way to a bound or a step."""
SAME: frozenset[str] = frozenset(
    {"stablehlo.convert", "stablehlo.reshape", "stablehlo.broadcast_in_dim",
     "stablehlo.optimization_barrier"}
)  # fmt: skip
"""Operations that keep a scalar's value."""
_KEEPS: Mapping[str, Callable[[int, int], bool]] = {
    "LT": lambda value, bound: value < bound,
    "LE": lambda value, bound: value <= bound,
    "GT": lambda value, bound: value > bound,
    "GE": lambda value, bound: value >= bound,
    "NE": lambda value, bound: value != bound,
}
"""Whether a counter keeps the loop going, by the direction of its comparison with the bound."""


def _iterations(direction: str, first: int, bound: int, step: int) -> int | None:
    """Runs of a loop's body; None of a loop that never ends."""
    if not _KEEPS[direction](first, bound):
        return 0
    way = bound - first
    if direction == "NE":
        return way // step if step and way % step == 0 and way // step > 0 else None
    if step <= 0 if direction in ("LT", "LE") else step >= 0:
        return None
    included = 1 if direction in ("LE", "GE") else 0
    return -(-(abs(way) + included) // abs(step))


def trip_count(condition: Body, body: Body, start: Known) -> int | None:
    """Iterations of a loop, None when the program does not fix them.

    Args:
        condition: region that compares a carried counter with a bound.
        body: region that steps the counter.
        start: what each argument of `condition` holds before the first iteration, if known.

    Raises:
        CaptureError: the loop never ends.
    """
    if len(condition.results) != 1:
        return None
    made = _makers(condition)
    test = made.get(condition.results[0])
    if test is None or test.op != "stablehlo.compare" or len(test.operands) != 2:
        return None
    places = {arg: i for i, arg in enumerate(condition.args)}
    left, right = (_through(value, made) for value in test.operands)
    direction = str(test.attrs.get("direction"))
    if left not in places and right in places:
        left, right = right, left
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    place = places.get(left)
    if place is None or direction not in _KEEPS or place >= len(body.results):
        return None
    if right in places and not carried_through(body, places[right]):
        return None
    bound = _value(right, made, start)
    first = start(left)
    step = _step(body, place)
    if bound is None or first is None or step is None:
        return None
    trips = _iterations(direction, first, bound, step)
    if trips is None:
        raise CaptureError(
            f"a loop of the program never ends: its counter starts at {first}, changes by {step} "
            f"and is to run while it is {direction} {bound}"
        )
    return trips


def _makers(body: Body) -> dict[Value, Instr]:
    return {result: instr for instr in body.instrs for result in instr.results}


def _through(value: Value, made: Mapping[Value, Instr]) -> Value:
    """The value behind operations that keep it."""
    while (maker := made.get(value)) is not None and maker.op in SAME and maker.operands:
        value = maker.operands[0]
    return value


def _value(value: Value, made: Mapping[Value, Instr], start: Known) -> int | None:
    value = _through(value, made)
    maker = made.get(value)
    if maker is None:
        return start(value)
    if maker.op == "stablehlo.constant":
        held = maker.attrs.get("value")
        return held if isinstance(held, int) else None
    fold = FOLDS.get(maker.op)
    if fold is None:
        return None
    a, b = (_value(v, made, start) for v in maker.operands)
    return None if a is None or b is None else fold(a, b)


def carried_through(body: Body, place: int) -> bool:
    """Whether a loop's body hands an argument on as it is."""
    made = _makers(body)
    return _through(body.results[place], made) is body.args[place]


def _step(body: Body, place: int) -> int | None:
    """What one iteration adds to the counter."""
    made = _makers(body)
    maker = made.get(_through(body.results[place], made))
    if maker is None or maker.op not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    a, b = (_through(v, made) for v in maker.operands)
    sign = 1 if maker.op == "stablehlo.add" else -1
    if b is body.args[place] and sign > 0:
        a, b = b, a
    if a is not body.args[place]:
        return None
    amount = _value(b, made, lambda _: None)
    return None if amount is None else sign * amount
