"""TorchInductor's own kernels for ten small programs, and this library's count of them.

Run: `python benchmarks/inductor_counts.py [--record FILE.json] [--show MODEL]`. The compiler
generates code on the CPU and stops before a C++ or Triton compiler is called, so that it needs
neither of them nor a GPU: `cpp` is its CPU backend, `triton` what it generates for a GPU. Functions
called are counted in the generated program, fused kernels and library calls.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.utils._triton
from inductor_models import MODELS, build
from torch._inductor import config
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.graph import GraphLowering

from predictor import capture
from predictor.lower.inductor import compiled, kernel_names

BACKENDS = {"triton": "triton-on-cpu", "cpp": "cpu"}
"""Inductor's backend, and the library's name for it."""
_KERNEL = re.compile(
    r"^\s+(?:\w+ = )?(cpp_fused_\w+|triton_(?:poi|per|red)_\w+?)(?:\.run)?\(", re.M
)
_ASIDE = frozenset({
    "triton", "cpp", "poi", "per", "red", "fused", "view", "expand", "permute", "transpose",
    "unsafe", "select", "slice", "unsqueeze", "native", "legit", "functional", "no", "training",
    "clone", "copy", "x",
})  # fmt: skip
"""Words of a kernel's name that are no call that computes."""
_LIBRARY = re.compile(r"^\s+(?:\w+ = )?(extern_kernels\.\w+|torch\.ops\.[\w.]+)\(", re.M)


class _Generated(Exception):
    """Raised once the code is there."""


class Watch:
    """An Inductor that keeps what it generates, and runs the graph as it came."""

    def __init__(self) -> None:
        self.code: list[tuple[str, str]] = []
        self._last = ""

    def backend(self, module: Any, inputs: Any) -> Any:
        """For `torch.compile(backend=…)`."""
        return compile_fx(module, inputs, inner_compile=self._inner)

    def _inner(self, module: Any, inputs: Any, **options: Any) -> Any:
        self._last = ""
        try:
            compile_fx_inner(copy.deepcopy(module), inputs, **options)
        except Exception:
            if not self._last:
                raise
        self.code.append(("backward" if options.get("is_backward") else "forward", self._last))

        def run(args: list[Any]) -> Any:
            given = list(args)
            args.clear()
            with torch.no_grad():
                return module(*given)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    @contextmanager
    def stopping(self, backend: str) -> Iterator[None]:
        """Code generation alone."""
        before = GraphLowering.compile_to_module

        def stop(graph: Any) -> Any:
            self._last = graph.codegen()[0].value
            raise _Generated

        GraphLowering.compile_to_module = stop
        torch.utils._triton.triton_hash_with_backend = lambda: "none"
        torch._dynamo.reset()
        try:
            with (
                config.patch(cpu_backend=backend, fx_graph_cache=False, compile_threads=1),
                torch._functorch.config.patch(enable_autograd_cache=False),
            ):
                yield
        finally:
            GraphLowering.compile_to_module = before


def called(code: str) -> tuple[list[str], list[str]]:
    """Generated kernels and library calls of a generated program, in order."""
    body = code[code.index("def call(self, args)") :].split("\nrunner =")[0]
    return _KERNEL.findall(body), _LIBRARY.findall(body)


def words(name: str) -> frozenset[str]:
    """Calls in a kernel's name; views, sizes and the kind of kernel aside."""
    return frozenset(w for w in re.split(r"[_\d]+", name) if w and w not in _ASIDE)


def agreement(theirs: Sequence[str], ours: Sequence[str]) -> float:
    """Mean share of words (Jaccard) of each generated kernel with the most similar one of ours."""
    left, total = [words(name) for name in ours], 0.0
    for name in theirs:
        own = words(name)
        shares = [len(own & other) / max(1, len(own | other)) for other in left]
        best = max(range(len(left)), key=shares.__getitem__, default=None)
        if best is not None:
            total += shares[best]
            del left[best]
    return total / max(1, len(theirs))


def by_inductor(name: str, backend: str, mode: str) -> dict[str, dict[str, Any]]:
    """What the compiler calls, by phase."""
    module, inputs = build(name)
    module.train(mode == "train")
    watch = Watch()
    with watch.stopping(backend):
        run: Callable[..., Any] = torch.compile(module, backend=watch.backend)
        if mode == "train":
            run(*inputs).backward()
        else:
            with torch.no_grad():
                run(*inputs)
    found = {}
    for phase, code in watch.code:
        kernels, library = called(code)
        found[phase] = {"kernels": kernels, "library": library}
    return found


def by_library(name: str, backend: str, mode: str, processors: int) -> dict[str, dict[str, Any]]:
    """What this library says that it calls."""
    module, inputs = build(name)
    module.train(mode == "train")
    given = {"loss": lambda out: out} if mode == "train" else {}
    graph = capture(module, inputs, mode=mode, **given)
    found = {}
    phases = compiled(
        graph, backend=BACKENDS[backend], processors=processors, channels_last=True
    )  # convolutions of a CPU always are
    for one in phases:
        if one.phase != "optimizer":
            found[one.phase] = {"calls": one.calls, "kernels": kernel_names(one)}
    return found


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, metavar="FILE.json")
    parser.add_argument("--read", type=Path, metavar="FILE.json", help="counts recorded before")
    parser.add_argument("--show", metavar="MODEL")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    names = [given.show] if given.show else list(MODELS)
    recorded = json.loads(given.read.read_text()) if given.read else None
    table: dict[str, Any] = {"torch": torch.__version__, "processors": os.cpu_count(), "counts": {}}
    if recorded:
        table |= {k: v for k, v in recorded.items() if k != "counts"}
    named: list[float] = []
    errors: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    for name in names:
        for backend in BACKENDS:
            for mode in ("infer", "train"):
                key = f"{name} {backend} {mode}"
                own = recorded["counts"][key] if recorded else by_inductor(name, backend, mode)
                table["counts"][key] = own
                mine = by_library(name, backend, mode, table["processors"])
                theirs_n = sum(len(p["kernels"]) + len(p["library"]) for p in own.values())
                mine_n = sum(p["calls"] for p in mine.values())
                error = mine_n / theirs_n - 1
                errors[backend].append(abs(error))
                line = f"{key:28} inductor {theirs_n:4} here {mine_n:4} {error:+.1%}"
                if backend == "triton":  # functions of C++ hold several kernels of ours
                    alike = [agreement(own[p]["kernels"], mine[p]["kernels"]) for p in own]
                    named.append(statistics.mean(alike))
                    line += f"  names alike {named[-1]:.0%}"
                sys.stdout.write(f"{line}\n")
                for phase in own if given.show else ():
                    sys.stdout.write(f"  {phase}\n")
                    for shown in (*own[phase]["kernels"], *own[phase]["library"]):
                        sys.stdout.write(f"    {shown}\n")
                    sys.stdout.write(f"  here: {mine[phase]['calls']}\n")
                    for shown in mine[phase]["kernels"]:
                        sys.stdout.write(f"    {shown}\n")
                sys.stdout.flush()
    for backend, found in errors.items():
        sys.stdout.write(
            f"{backend}: median {statistics.median(found):.1%}, largest {max(found):.1%}\n"
        )
    sys.stdout.write(f"names of triton's kernels alike: {statistics.mean(named):.0%}\n")
    if given.record:
        given.record.write_text(json.dumps(table, indent=0) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
