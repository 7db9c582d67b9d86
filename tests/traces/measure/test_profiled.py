"""Trees of profiled calls from events made up here, as a CUDA run gives them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch._C._autograd import DeviceType

from predictor.traces.measure.profiled import STEP, call_cost_us, call_tree


@dataclass
class Range:
    start: float
    end: float

    def elapsed_us(self) -> float:
        return self.end - self.start


@dataclass
class Event:
    name: str
    time_range: Range
    thread: int = 1
    device_time_total: float = 0.0
    input_shapes: list = field(default_factory=list)
    sequence_nr: int = -1
    device_type: DeviceType = DeviceType.CPU
    cpu_children: list = field(default_factory=list)
    cpu_parent: object = None

    def holds(self, *children: Event) -> Event:
        self.cpu_children = list(children)
        for child in children:
            child.cpu_parent = self
        return self


def test_a_backward_in_another_thread_stands_in_its_phase():
    forward = Event("predictor.forward", Range(0, 40), device_time_total=5.0)
    forward.holds(Event("aten::mm", Range(10, 20), device_time_total=5.0,
                        input_shapes=[[2, 3], [3, 4], []]))  # fmt: skip
    backward = Event("predictor.backward", Range(40, 90))
    step = Event(STEP, Range(0, 100), device_time_total=5.0).holds(forward, backward)
    gradient = Event("autograd::engine::evaluate_function: MmBackward0", Range(50, 80), thread=2,
                     device_time_total=11.0)  # fmt: skip
    gradient.holds(Event("aten::mm", Range(55, 70), thread=2, device_time_total=11.0))
    before = Event("aten::add", Range(-9, -1), thread=2)
    tree = call_tree([step, forward, backward, *forward.cpu_children, gradient, before,
                      *gradient.cpu_children])  # fmt: skip
    assert [(c.name, c.phase) for c in tree.every()] == [
        (STEP, ""), ("predictor.forward", "forward"), ("aten::mm", "forward"),
        ("predictor.backward", "backward"), (gradient.name, "backward"), ("aten::mm", "backward"),
    ]  # fmt: skip
    assert tree.calls == 5
    assert tree.inside[0].inside[0].shapes == ((2, 3), (3, 4))
    assert tree.inside[1].device_us == 11.0


def test_shapes_of_lists_of_tensors():
    cat = Event("aten::cat", Range(1, 2), input_shapes=[[[2, 3], [4, 3]], []])
    phase = Event("predictor.forward", Range(0, 3)).holds(cat)
    tree = call_tree([Event(STEP, Range(0, 4)).holds(phase), phase, cat])
    assert tree.every()[-1].shapes == ((2, 3), (4, 3))


def test_what_the_profiler_takes_for_a_call_is_not_negative():
    assert call_cost_us(pairs=2) >= 0.0
