"""Options that several commands share, so that they read and behave alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from predictor.checkpoint import DEFAULT_CHECKPOINT, DEFAULT_OF_KIND
from predictor.errors import CaptureError
from predictor.program import DEFAULT_OPTIMIZER, Mode
from predictor.runtime import RUNTIMES, Runtime

TARGET_HELP = (
    "A zoo name (gpt2-large), timm:NAME or timm:NAME@PIXELS, file.py:function returning "
    "(module, inputs) or (jitted JAX function, arguments), an ONNX model (.onnx), an exported "
    "program (.pt2), StableHLO (.mlir), a graph that `predictor capture` wrote, or a trace or "
    "execution graph of torch.profiler (.json, .json.gz). Not yet: hf:DIR."
)

Target = Annotated[str, typer.Argument(metavar="TARGET", help=TARGET_HELP)]
Train = Annotated[bool, typer.Option("--train", help="A training step instead of a forward.")]
Batch = Annotated[int | None, typer.Option(metavar="N", min=1, help="Batch size.")]
Seq = Annotated[int | None, typer.Option(metavar="N", min=1, help="Sequence length.")]
Dtype = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE", help="fp32 (default), bf16, fp16, amp-bf16 or amp-fp16; not yet: fp8."
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help=f"adamw or sgd ({DEFAULT_OPTIMIZER} when not given), with --train."
    ),
]
Recompute = Annotated[
    bool,
    typer.Option(
        "--recompute",
        help="Activation checkpointing: every block runs its forward again, with --train.",
    ),
]
Checkpoint = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|DIR",
        help=f"Shipped name, or folder of a trained network; {DEFAULT_CHECKPOINT} when not given, "
        f"for TPUs {DEFAULT_OF_KIND['tpu']}.",
    ),
]
Tf32 = Annotated[
    bool | None,
    typer.Option(
        "--tf32/--no-tf32",
        help="Whether fp32 matrix products may take TF32 (PyTorch: not; fused inference on NVIDIA "
        "GPUs: yes, and convolutions with them).",
    ),
]
AllowOpaque = Annotated[
    bool,
    typer.Option(
        "--allow-opaque", help="Take calls without a cost rule as opaque kernels: a wide interval."
    ),
]
RuntimeName = Annotated[
    str | None,
    typer.Option(
        "--runtime",
        metavar="NAME",
        help="pytorch, or fused: an inference runtime as TensorRT or ONNX Runtime (the default "
        "of ONNX models).",
    ),
]
Json = Annotated[
    str | None, typer.Option("--json", metavar="FILE", help="Write JSON; - is standard output.")
]
Compile = Annotated[bool, typer.Option("--compile", help="The program runs under torch.compile.")]
CompileLater = Annotated[bool, typer.Option("--compile", help="Not yet: a compiled program.")]
Gpus = Annotated[int | None, typer.Option(metavar="N", help="Not yet: several devices.")]
Plan = Annotated[str | None, typer.Option(metavar="PLAN", help="Not yet: dp=8,tp=2,pp=4.")]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=N",
        help="A free size of an exported program or ONNX model, by name; trips=N: iterations of a "
        "JAX program's loops; may be repeated.",
    ),
]
Platform = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What a jitted JAX function is lowered for: cuda (when not given), tpu or cpu.",
    ),
]
Adapter = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="A device's adapter from `predictor calibrate`, or auto: the device's own in the "
        "user's folder.",
    ),
]
Data = Annotated[
    list[Path],
    typer.Option("--data", metavar="DIR", help="Folder of source folders; may be repeated."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value; may be repeated."),
]


def dims_of(given: list[str] | None) -> dict[str, int]:
    """The sizes that `--dim NAME=N` names.

    Raises:
        CaptureError: one is not a name and a number, or is given twice.
    """
    dims: dict[str, int] = {}
    for text in given or ():
        name, equals, size = text.rpartition("=")
        if not equals or not name.strip() or not size.strip().isdecimal():
            raise CaptureError(f"--dim {text!r}: write NAME=N with N from 0, as in --dim batch=8")
        if name.strip() in dims:
            raise CaptureError(f"--dim names {name.strip()!r} twice")
        dims[name.strip()] = int(size)
    return dims


def runtime_named(name: str | None) -> Runtime | None:
    """The runtime that `--runtime` names.

    Raises:
        CaptureError: no such runtime.
    """
    found = next((one for one in RUNTIMES if one == name), None)
    if name is not None and found is None:
        raise CaptureError(f"--runtime {name!r}: one of {', '.join(RUNTIMES)}")
    return found


def mode_of(train: bool) -> Mode | None:
    """The mode that `--train` asks for; a captured graph keeps its own without it."""
    return "train" if train else None
