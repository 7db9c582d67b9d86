"""Every kind of a grid comes out as the one kernel that it says it is."""

from __future__ import annotations

import pytest
import torch

from predictor.errors import DataError
from predictor.graph.ops import OPS
from predictor.traces.measure.cases import Case, kernel_of, phase_of
from predictor.traces.measure.kinds import kind_of, kinds, tensor
from predictor.traces.measure.operands import MOST_PREPARED_SETS, Operands

SIZES = {
    "m": 12, "n": 16, "k": 16, "batch": 2, "c_in": 8, "c_out": 16, "size": 8, "heads": 4,
    "q_len": 6, "head_dim": 8, "steps": 3, "input_size": 4, "hidden_size": 8, "groups": 4,
    "nnz_row": 2, "rows": 6, "cols": 16, "channels": 16, "numel": 96, "tensors": 3, "table": 10,
    "seq": 5,
}  # fmt: skip
CASES = [
    (name, dtype, device)
    for name, kind in kinds().items()
    for dtype in kind.dtypes
    for device in kind.devices
]


def case_of(name: str, dtype: str, device: str = "cpu", **sizes: int) -> Case:
    kind = kind_of(name)
    needed = {n: SIZES[n] for n, default in kind.sizes.items() if default is None}
    return kind.case({**needed, **sizes}, dtype, device)


@pytest.mark.parametrize(("name", "dtype", "device"), CASES)
def test_a_case_is_its_one_kernel(name, dtype, device):
    case = case_of(name, dtype, device)
    kernel = kernel_of(case)
    assert kernel.op == case.op
    assert kernel.dtype == dtype
    assert set(OPS[case.op].dims) <= set(kernel.dims)
    assert kernel.bytes > 0


@pytest.mark.parametrize("name", [n for n, k in kinds().items() if "cpu" in k.devices])
def test_what_is_timed_runs(name):
    case = case_of(name, kind_of(name).dtypes[0])
    operands = Operands("cpu", cache_bytes=4096)
    for call in operands.calls(case, cold=False):
        call()
        call()  # again: nothing was used up


def test_phases_follow_the_op():
    for name in kinds():
        case = case_of(name, kind_of(name).dtypes[0], kind_of(name).devices[0])
        assert case.phase in (phase_of(case.op), "backward")


def test_the_classes_that_run_on_a_cpu_are_all_there():
    found = {
        OPS[case_of(n, k.dtypes[0]).op].op_class for n, k in kinds().items() if "cpu" in k.devices
    }
    every = {op.op_class for op in OPS.values()}
    assert every - found == {"collective", "transfer"}


def test_a_call_of_several_kernels_is_no_case():
    x = tensor("fp32", 4)
    case = Case(call=lambda a: (a + 1) * 2, operands=(x,), op="add")
    with pytest.raises(DataError, match=r"'add' launches add, mul"):
        kernel_of(case)


def test_kernels_that_belong_to_the_call_count_with_it():
    whole = kernel_of(case_of("embedding_backward", "fp32"))
    assert whole.write_bytes > 10 * 16 * 4  # the table's zeros, and the rows that are added


@pytest.mark.parametrize(
    ("sizes", "dtype", "message"),
    [({"m": 1, "n": 1}, "fp32", "needs size 'k'"), ({"q": 1}, "fp32", "no size 'q'"),
     ({"m": 1, "n": 1, "k": 1}, "fp8", "does not run in 'fp8'")],
)  # fmt: skip
def test_wrong_sizes_are_named(sizes, dtype, message):
    with pytest.raises(DataError, match=message):
        kind_of("linear").case(sizes, dtype)


class TestOperands:
    def test_warm_operands_are_one_set_and_cold_ones_walk_through_the_cache(self):
        operands = Operands("cpu", cache_bytes=64 * 1024)
        case = case_of("add", "fp32", numel=2048)  # 16 KiB of operands, 128 KiB to walk
        assert len(operands.calls(case, cold=False)) == 1
        assert len(operands.calls(case, cold=True)) == 8

    def test_cold_sets_share_no_memory(self):
        operands = Operands("cpu", cache_bytes=64 * 1024)
        case = case_of("add", "fp32", numel=2048)
        starts = [t.data_ptr() for call in operands.calls(case, cold=True) for t in call.args]
        assert len(set(starts)) == 16
        assert min(b - a for a, b in zip(sorted(starts), sorted(starts)[1:], strict=False)) >= 8192

    def test_small_operands_cannot_be_cold(self):
        operands = Operands("cpu", cache_bytes=2**25)
        assert not operands.can_be_cold(case_of("add", "fp32", numel=8))
        assert not operands.can_be_cold(case_of("adamw", "fp32", numel=MOST_PREPARED_SETS))
        assert operands.can_be_cold(case_of("add", "fp32", numel=2**20))

    def test_operands_are_as_the_case_says(self):
        operands = Operands("cpu", cache_bytes=4096)
        [call] = operands.calls(case_of("conv", "bf16", nhwc=1), cold=False)
        x, w = call.args
        assert x.shape == (2, 8, 8, 8) and x.dtype is torch.bfloat16
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert w.is_contiguous(memory_format=torch.channels_last)

    def test_indices_stay_in_their_table(self):
        [call] = Operands("cpu", cache_bytes=4096).calls(case_of("embedding", "fp32"), cold=False)
        assert int(call.args[0].min()) >= 0 and int(call.args[0].max()) < SIZES["table"]
