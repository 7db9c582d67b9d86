"""Bytes that a read touches, and layouts, against tensors that can be counted."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from predictor.capture.specs import dtype_name, layout_of, touched_bytes
from predictor.errors import CaptureError


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.data())
def test_touched_bytes_of_expanded_permuted_slices(shape, data):
    base = torch.arange(10_000)[: torch.Size(shape).numel()].view(shape)
    order = data.draw(st.permutations(range(len(shape))))
    view = base.permute(order).unsqueeze(0).expand(3, *(shape[d] for d in order))[..., ::2]
    distinct = len(set(view.flatten().tolist()))
    assert touched_bytes(view.shape, view.stride(), 8) == 8 * distinct


def test_overlapping_windows_touch_their_span():
    windows = torch.arange(10).unfold(0, 4, 1)
    assert windows.shape == (7, 4)
    assert touched_bytes(windows.shape, windows.stride(), 4) == 40


def test_layouts():
    image = torch.empty(2, 3, 4, 5)
    assert layout_of(image) == "contiguous"
    assert layout_of(image.to(memory_format=torch.channels_last)) == "channels_last"
    assert layout_of(image.transpose(2, 3)) == "strided"
    volume = torch.empty(2, 3, 4, 5, 6).to(memory_format=torch.channels_last_3d)
    assert layout_of(volume) == "channels_last"


def test_dtypes_outside_the_vocabulary():
    assert dtype_name(torch.float8_e5m2) == "fp8"
    with pytest.raises(CaptureError, match="no cost vocabulary"):
        dtype_name(torch.quint8)
