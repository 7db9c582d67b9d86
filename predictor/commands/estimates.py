"""`predictor estimate`, `compare` and `capture`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from predictor import api
from predictor.commands import options
from predictor.commands.later import refuse_given
from predictor.commands.output import (
    check_files,
    note,
    prints_aside,
    say,
    show,
    write_json,
)
from predictor.errors import UnsupportedPrecision
from predictor.runtime import graphs_for

if TYPE_CHECKING:
    from predictor.report.estimate import Estimate


def estimate(
    target: options.Target,
    device: Annotated[
        list[str],
        typer.Option(
            "--device", metavar="ID", help="Catalogue name or device file; may be repeated."
        ),
    ],
    train: options.Train = False,
    batch: options.Batch = None,
    seq: options.Seq = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    recompute: options.Recompute = False,
    checkpoint: options.Checkpoint = None,
    tf32: options.Tf32 = None,
    runtime: options.RuntimeName = None,
    allow_opaque: options.AllowOpaque = False,
    json: options.Json = None,
    compile_: options.Compile = False,
    dim: options.Dim = None,
    gpus: options.Gpus = None,
    plan: options.Plan = None,
    adapter: options.Adapter = None,
    html: Annotated[str | None, typer.Option(metavar="FILE", help="Not yet.")] = None,
    perfetto: Annotated[str | None, typer.Option(metavar="FILE", help="Not yet.")] = None,
) -> None:
    """Latency, memory and coverage of a program on a device.

    With several --device the program is captured once (a JAX function once a platform); --json then
    writes an array. A device that cannot run it is told last, and the exit status is 1.
    """
    refuse_given(gpus=gpus, plan=plan, html=html, perfetto=perfetto)
    check_files(json=json)
    from predictor.hardware.catalogue import resolve_device

    devices = [resolve_device(name) for name in device]  # before the capture: fail early
    networks = [api.network_for(checkpoint, one) for one in devices]
    adapters = api.adapters_of(adapter, devices, networks)
    with prints_aside():
        graphs = graphs_for(
            devices, target, mode=options.mode_of(train), batch=batch, seq=seq, dtype=dtype,
            optimizer=optimizer, recompute=recompute, dims=options.dims_of(dim),
        )  # fmt: skip
    estimates: list[Estimate] = []
    refused: dict[str, UnsupportedPrecision] = {}
    for one, network in zip(devices, networks, strict=True):
        try:
            estimates.append(
                api.estimate(
                    graphs[one.id],
                    device=one,
                    checkpoint=network,
                    matmul_tf32=tf32,
                    runtime=options.runtime_named(runtime),
                    compile=compile_,
                    allow_opaque=allow_opaque,
                    adapter=adapters.get(one.id),
                )
            )
        except UnsupportedPrecision as error:
            refused[one.id] = error
    if not estimates:
        raise next(iter(refused.values()))
    if json is not None:
        rows = [e.to_json() for e in estimates]
        write_json(rows[0] if len(devices) == 1 else rows, json)
    if json != "-":
        from predictor.report.text import estimate_view

        for i, found in enumerate(estimates):
            if i:
                say("")
            show(estimate_view(found))
    for name, reason in refused.items():
        note(f"error: {name} is refused: {reason}")
    if refused:
        raise typer.Exit(1)


def compare(
    target: options.Target,
    devices: Annotated[
        str, typer.Option("--devices", metavar="A,B,C", help="Catalogue names or device files.")
    ],
    train: options.Train = False,
    batch: options.Batch = None,
    seq: options.Seq = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    recompute: options.Recompute = False,
    checkpoint: options.Checkpoint = None,
    tf32: options.Tf32 = None,
    runtime: options.RuntimeName = None,
    allow_opaque: options.AllowOpaque = False,
    json: options.Json = None,
    compile_: options.Compile = False,
    dim: options.Dim = None,
    gpus: options.Gpus = None,
    plan: options.Plan = None,
    adapter: options.Adapter = None,
) -> None:
    """One program on several devices: step, interval, memory and throughput, one row each."""
    refuse_given(gpus=gpus, plan=plan)
    check_files(json=json)
    with prints_aside():
        comparison = api.compare(
            target,
            devices=[name.strip() for name in devices.split(",") if name.strip()],
            mode=options.mode_of(train),
            batch=batch,
            seq=seq,
            dtype=dtype,
            optimizer=optimizer,
            recompute=recompute,
            dims=options.dims_of(dim),
            checkpoint=checkpoint,
            matmul_tf32=tf32,
            runtime=options.runtime_named(runtime),
            compile=compile_,
            allow_opaque=allow_opaque,
            adapter=adapter,
        )
    if json is not None:
        write_json(comparison.to_json(), json)
    if json != "-":
        show(comparison.view())


def capture(
    target: options.Target,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Graph file to write.")],
    train: options.Train = False,
    batch: options.Batch = None,
    seq: options.Seq = None,
    dtype: options.Dtype = None,
    optimizer: options.Optimizer = None,
    recompute: options.Recompute = False,
    dim: options.Dim = None,
    platform: options.Platform = None,
) -> None:
    """The graph alone: every framework call of a step, as JSON."""
    from predictor.graph.serialize import save_graph

    check_files(out=out)
    with prints_aside():
        graph = api.capture(
            target, mode=options.mode_of(train), batch=batch, seq=seq, dtype=dtype,
            optimizer=optimizer, recompute=recompute, dims=options.dims_of(dim), platform=platform,
        )  # fmt: skip
    save_graph(graph, out)
    say(f"{out}: {len(graph.nodes):,} framework calls, {graph.workload.parameters:,} parameters")


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("estimate")(estimate)
    app.command("compare")(compare)
    app.command("capture")(capture)
