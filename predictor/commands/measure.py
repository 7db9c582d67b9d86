"""`predictor measure`: times on the device at hand, as rows that train like any others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from predictor.commands import options
from predictor.commands.later import refuse_given
from predictor.commands.measure_text import step_text
from predictor.commands.output import check_files, note, prints_aside, say
from predictor.errors import DataError

_Device = Annotated[
    str,
    typer.Option(
        "--device", metavar="cpu|cuda|ID", help="What is measured; a plan alone may be for any ID."
    ),
]


def measure(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Rows to write (.parquet).")],
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[TARGET]", help="A program: zoo name, timm:NAME, file.py:function."
        ),
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option(
            "--kernels",
            metavar="GRID",
            help="Kernels: quick, full, cuda, or a grid file (.toml, .csv).",
        ),
    ] = None,
    device: _Device = "cpu",
    name: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="ID|FILE", help="What rows call the device; found out when not given."
        ),
    ] = None,
    train: options.Train = False,
    batch: options.Batch = None,
    seq: options.Seq = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    tf32: Annotated[
        bool, typer.Option("--tf32", help="Allow TF32 in fp32 matrix products (PyTorch: off).")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Threads of a CPU; one a core.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(metavar="S", min=0.001, help="Sampling time of one kernel, or of a step."),
    ] = 0.15,
    minutes: Annotated[
        float | None, typer.Option(metavar="M", min=0.01, help="Stop after this time.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the rows that FILE holds.")
    ] = False,
    suggest: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Choose the N measurements that tell most of the programs given by --for: "
            "--out plan.json writes the plan, --out rows.parquet measures it too.",
        ),
    ] = None,
    for_: Annotated[
        list[str] | None,
        typer.Option("--for", metavar="TARGET", help="A program to be predicted; repeatable."),
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measure what a plan (.json) asks for.")
    ] = None,
    checkpoint: options.Checkpoint = None,
    compile_: options.CompileLater = False,
) -> None:
    """Measure kernels of a grid, a whole program with the kernels inside its step, or a plan."""
    refuse_given(compile=compile_)
    check_files(out=out)
    ways = {"a program (TARGET)": target, "a grid of kernels (--kernels)": kernels,
            "--suggest N --for TARGET": suggest, "a plan (--plan)": plan}  # fmt: skip
    if sum(way is not None for way in ways.values()) != 1:
        raise typer.BadParameter(f"give one of: {', '.join(ways)}")
    if (suggest is None) != (not for_):
        raise typer.BadParameter("--suggest N and --for TARGET belong together")
    sizes = {"mode": options.mode_of(train), "batch": batch, "seq": seq, "dtype": dtype,
             "optimizer": optimizer}  # fmt: skip
    planned_only = suggest is not None and out.suffix == ".json"
    if planned_only:
        from predictor.commands.suggest import suggested

        assert suggest is not None and for_ is not None
        suggested(for_, sizes, out, device=device, name=name, threads=threads, tf32=tf32,
                  checkpoint=checkpoint, most=suggest, minutes=minutes)  # fmt: skip
        return
    if out.suffix != ".parquet":
        raise typer.BadParameter(f"{str(out)!r}: rows are written as .parquet", param_hint="--out")
    if kernels is not None or plan is not None:
        given = {"--train": train, "--batch": batch, "--seq": seq, "--dtype": dtype,
                 "--optimizer": optimizer}  # fmt: skip
        unused = next((flag for flag, value in given.items() if value), None)
        if unused is not None:
            raise typer.BadParameter(f"{unused} is for a program, not for a grid or a plan")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of each step otherwise
    from predictor.traces.measure.grid import read_grid
    from predictor.traces.measure.plan import read_plan
    from predictor.traces.measure.session import MeasureSession

    points = None if kernels is None else read_grid(kernels)  # before anything is measured
    chosen = None if plan is None else read_plan(plan)
    session = MeasureSession.open(
        out, device=_device_type(device), name=name, threads=threads, tf32=tf32, seconds=seconds,
        minutes=minutes, resume=resume,
    )  # fmt: skip
    note(session.greeting())
    if points is not None:
        say(session.kernels(points, {"grid": kernels}))
        return
    if suggest is not None and for_ is not None:
        from predictor.commands.suggest import suggested_here

        chosen = suggested_here(for_, sizes, out, session.device.device, checkpoint=checkpoint,
                                most=suggest, minutes=minutes)  # fmt: skip
    if chosen is not None:
        with prints_aside():
            text = session.plan(chosen)
        say(text)
        return
    assert target is not None
    with prints_aside():
        key, measured = session.program(
            target, mode="train" if train else "infer", batch=batch, seq=seq, dtype=dtype,
            optimizer=optimizer,
        )  # fmt: skip
    files = f"{out} and {session.inside}" if measured.kernels else f"{out}"
    say(f"{step_text(key, measured)}\nwrote {files}")


def _device_type(name: str) -> Literal["cpu", "cuda"]:
    if name == "cpu":
        return "cpu"
    if name == "cuda":
        return "cuda"
    raise DataError(f"--device {name!r}: measured is what is here: cpu or cuda")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("measure")(measure)
