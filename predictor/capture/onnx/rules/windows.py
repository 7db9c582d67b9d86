"""Windows that slide: kernel, stride, padding and dilation of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from predictor.capture.onnx.call import Call, Rule
from predictor.capture.onnx.values import Item, numel_of


@dataclass(frozen=True, slots=True)
class Window:
    """A window over the spatial axes."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Before each axis, then behind each."""
    ceil: bool
    same: bool

    def sizes(self, spatial: Sequence[int]) -> tuple[int, ...]:
        """Positions of the window along each axis."""
        axes = len(self.kernel)
        out: list[int] = []
        for i, size in enumerate(spatial):
            if self.same:
                out.append(-(-size // self.strides[i]))
                continue
            room = size + self.pads[i] + self.pads[axes + i]
            room -= self.dilations[i] * (self.kernel[i] - 1) + 1
            steps = -(-room // self.strides[i]) if self.ceil else room // self.strides[i]
            if self.ceil and steps * self.strides[i] >= size + self.pads[i]:
                steps -= 1  # a window that would start in the padding behind
            out.append(max(0, steps + 1))
        return tuple(out)


def window_of(call: Call, spatial: Sequence[int], kernel: Sequence[int] | None = None) -> Window:
    """The window of a call.

    Raises:
        CaptureError: a number of sizes that is not that of the axes, or one below 1.
    """
    axes = len(spatial)
    kernel = tuple(call.ints("kernel_shape") or kernel or ())
    strides = tuple(call.ints("strides") or [1] * axes)
    dilations = tuple(call.ints("dilations") or [1] * axes)
    pads = tuple(call.ints("pads") or [0] * (2 * axes))
    if {len(kernel), len(strides), len(dilations), len(pads) / 2} != {axes}:
        raise call.wrong(f"kernel {list(kernel)}, strides {list(strides)}, pads {list(pads)}")
    if min((*kernel, *strides, *dilations), default=1) < 1:
        raise call.wrong(f"kernel {list(kernel)}, strides {list(strides)}: below 1")
    automatic = call.attr("auto_pad", "NOTSET") or "NOTSET"
    if automatic == "VALID":
        pads = (0,) * (2 * axes)
    return Window(
        kernel=kernel,
        strides=strides,
        dilations=dilations,
        pads=pads,
        ceil=bool(call.attr("ceil_mode", 0)),
        same=automatic.startswith("SAME"),
    )


def pooled(op: str) -> Rule:
    """Pooling over a window; `max` also gives positions."""

    def run(call: Call) -> list[Item]:
        x = call.value(0)
        if len(x.shape) < 3:
            raise call.wrong(f"input {list(x.shape)}; a batch of images is needed")
        window = window_of(call, x.shape[2:])
        shape = (*x.shape[:2], *window.sizes(x.shape[2:]))
        axes = len(window.kernel)
        attrs: dict[str, object] = {
            "kernel_size": list(window.kernel), "stride": list(window.strides),
            "padding": list(window.pads[:axes]), "dilation": list(window.dilations),
        }  # fmt: skip
        if op == "avg":
            return list(call.tape.call(f"aten.avg_pool{axes}d", (x,), [(shape, x.dtype)], attrs))
        results = [(shape, x.dtype), (shape, "int64")]
        name = f"aten.max_pool{max(2, axes)}d_with_indices"
        return list(call.tape.call(name, (x,), results, attrs))

    return run


def over_image(op: str) -> Rule:
    """Global pooling: a reduction over the spatial axes."""

    def run(call: Call) -> list[Item]:
        x = call.value(0)
        shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
        attrs = {"dim": list(range(2, len(x.shape))), "keepdim": True}
        return [call.tape.one(f"aten.{op}", (x,), shape, x.dtype, attrs)]

    return run


def max_unpool(call: Call) -> list[Item]:
    """`MaxUnpool`: zeros, and the values put back where they came from."""
    x = call.value(0)
    given = call.known_ints(2) if call.has(2) else None
    window = window_of(call, x.shape[2:])
    axes = len(window.kernel)
    sizes = [
        (x.shape[2 + i] - 1) * window.strides[i] + window.kernel[i]
        - window.pads[i] - window.pads[axes + i]
        for i in range(axes)
    ]  # fmt: skip
    shape = tuple(given) if given else (*x.shape[:2], *sizes)
    return [call.tape.one("aten.max_unpool2d", call.values()[:2], shape, x.dtype)]


def over_regions(call: Call) -> list[Item]:
    """`RoiAlign`, `MaxRoiPool`: every output samples its region."""
    x, regions = call.value(0), call.value(1)
    if call.node.op == "MaxRoiPool":
        pooled = call.ints("pooled_shape")
        if len(pooled) != 2:
            raise call.wrong(f"pooled_shape {list(pooled)} is no height and width")
        height, width = pooled
    else:
        height, width = call.integer("output_height", 1), call.integer("output_width", 1)
    shape = (regions.shape[0], x.shape[1], height, width)
    ratio = max(1, call.integer("sampling_ratio", 0) or 2)
    attrs = {"kernel_size": [ratio, ratio]}
    return [call.tape.one("aten.avg_pool2d", call.values(), shape, x.dtype, attrs)]


def local_response(call: Call) -> list[Item]:
    """`LRN` as PyTorch runs it: squares, a window over channels, a power, a quotient."""
    x = call.value(0)
    tape, shape, dtype = call.tape, x.shape, x.dtype
    square = tape.one("aten.mul", (x, x), shape, dtype)
    size = call.integer("size", 1)
    sums = tape.one("aten.avg_pool3d", (square,), shape, dtype, {"kernel_size": [size, 1, 1]})
    scaled = tape.one("aten.add", (tape.one("aten.mul", (sums,), shape, dtype),), shape, dtype)
    power = tape.one("aten.pow", (scaled,), shape, dtype)
    return [tape.one("aten.div", (x, power), shape, dtype)]


def im2col_back(call: Call) -> list[Item]:
    """`Col2Im`."""
    x = call.value(0)
    image, block = call.known_ints(1), call.known_ints(2)
    if image is None or block is None:
        raise call.unknown("its image size")
    shape = (x.shape[0], x.shape[1] // max(1, numel_of(block)), *image)
    return [call.tape.one("aten.col2im", (x,), shape, x.dtype)]


WINDOWS: Mapping[str, Rule] = {
    "MaxPool": pooled("max"), "AveragePool": pooled("avg"), "LpPool": pooled("avg"),
    "GlobalAveragePool": over_image("mean"), "GlobalMaxPool": over_image("amax"),
    "GlobalLpPool": over_image("norm"), "MaxUnpool": max_unpool, "RoiAlign": over_regions,
    "MaxRoiPool": over_regions, "LRN": local_response, "Col2Im": im2col_back,
}  # fmt: skip
"""Rules of the standard domain."""
