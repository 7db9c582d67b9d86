"""Options with a JAX program: obeyed or refused in words, from Python and on the command line."""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

import predictor
from predictor.cli import main
from predictor.errors import CaptureError

jax = pytest.importorskip("jax", reason="JAX programs need the jax extra")
optax = pytest.importorskip("optax", reason="training steps in JAX need optax")

PROGRAMS = """
import jax, jax.numpy as jnp

SPEC = jax.ShapeDtypeStruct


def product(batch=64):
    return jax.jit(lambda x, w: x @ w), (SPEC((batch, 256), "float32"), SPEC((256, 256), "float32"))


def loop():
    def run(n, x, w):
        return jax.lax.fori_loop(0, n, lambda _, y: y @ w, x)

    spec = SPEC((64, 64), "bfloat16")
    return jax.jit(run), (SPEC((), "int32"), spec, spec)


def platform():
    def run(x):
        return jax.lax.platform_dependent(
            x, tpu=lambda y: y @ y, cuda=lambda y: y @ y @ y, cpu=lambda y: y + y
        )

    return jax.jit(run), (SPEC((512, 512), "bfloat16"),)


def wide():
    jax.config.update("jax_enable_x64", True)
    spec = SPEC((256, 256), "float64")
    program = jax.jit(lambda x, y: x @ y).trace(spec, spec)
    jax.config.update("jax_enable_x64", False)
    return program, ()


def module():
    import torch

    return torch.nn.Linear(16, 4), torch.randn(8, 16)
"""
GPU, TPU = "nvidia-a100-sxm-80gb", "google-tpu-v5e"
PRODUCT = 2 * 512**3


@pytest.fixture
def own(tmp_path: Path):
    file = tmp_path / "own.py"
    file.write_text(PROGRAMS)
    return lambda name: f"{file}:{name}"


@dataclass
class _Said:
    exit_code: int
    output: str


def _run(*arguments: str) -> _Said:
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as end:
        main(list(arguments))
    return _Said(int(end.value.code or 0), said.getvalue())


def _loss(w, x):
    return ((x @ w["a"] @ w["b"]) ** 2).mean()


def _forward(w, x):
    return x @ w["a"] @ w["b"]


ARGUMENTS = (
    {"a": jax.ShapeDtypeStruct((32, 64), "float32"), "b": jax.ShapeDtypeStruct((64, 8), "float32")},
    jax.ShapeDtypeStruct((16, 32), "float32"),
)


def _step(w, state, x):
    grads = jax.grad(_loss)(w, x)
    updates, state = optax.adamw(1e-3).update(grads, state, w)
    return optax.apply_updates(w, updates), state


STEP_ARGUMENTS = (ARGUMENTS[0], jax.eval_shape(optax.adamw(1e-3).init, ARGUMENTS[0]), ARGUMENTS[1])


@pytest.mark.parametrize("written", ["in memory", "with names", "without names"])
def test_inference_is_never_called_a_training_step(tmp_path: Path, written: str):
    jitted = jax.jit(_forward)
    target: tuple[object, ...] = (jitted, *ARGUMENTS)
    if written != "in memory":
        file = tmp_path / "forward.mlir"
        file.write_text(jitted.lower(*ARGUMENTS).as_text(debug_info=written == "with names"))
        target = (str(file),)
    with pytest.raises(CaptureError, match="is no training step: nothing in it differentiates"):
        predictor.capture(*target, mode="train")
    assert predictor.capture(*target).workload.mode == "infer"


@pytest.mark.parametrize("mode", [None, "train"])
@pytest.mark.parametrize("written", ["in memory", "with names", "without names"])
def test_a_training_step_is_recognised_and_may_be_stated(tmp_path: Path, written: str, mode):
    jitted = jax.jit(_step)
    target: tuple[object, ...] = (jitted, *STEP_ARGUMENTS)
    if written != "in memory":
        file = tmp_path / "step.mlir"
        file.write_text(jitted.lower(*STEP_ARGUMENTS).as_text(debug_info=written == "with names"))
        target = (str(file),)
    workload = predictor.capture(*target, mode=mode).workload
    assert (workload.mode, workload.optimizer) == ("train", "captured")
    assert workload.trainable_parameters == 32 * 64 + 64 * 8


def test_one_parameter_is_a_training_step_where_it_is_stated(tmp_path: Path):
    def step(w, x):
        return w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)

    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((32, 8), (16, 32))]
    file = tmp_path / "step.mlir"
    file.write_text(jax.jit(step).lower(*specs).as_text())
    assert predictor.capture(str(file)).workload.mode == "infer"
    assert predictor.capture(str(file), mode="train").workload.mode == "train"


@pytest.mark.parametrize("device", [GPU, TPU])
def test_names_and_phases_do_not_move_the_interval(tmp_path: Path, device: str):
    found = []
    for names in (True, False):
        file = tmp_path / f"step-{names}.mlir"
        file.write_text(jax.jit(_step).lower(*STEP_ARGUMENTS).as_text(debug_info=names))
        found.append(predictor.estimate(str(file), device=device))
    with_names, without = found
    assert set(with_names.phases) > set(without.phases)
    assert with_names.latency_us == pytest.approx(without.latency_us)
    assert with_names.interval_us == pytest.approx(without.interval_us)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--optimizer", "sgd"], "decides its own optimizer"),
        (["--train", "--optimizer", "sgd"], "decides its own optimizer"),
        (["--recompute"], "decides its own recompute"),
        (["--dtype", "bf16"], "decides its own dtype"),
        (["--tf32"], "says the precision of each product itself"),
        (["--compile"], "XLA compiles this one already"),
        (["--runtime", "fused"], "does not run StableHLO"),
        (["--train"], "is no training step"),
        (["--dim", "batch=3"], "no free size batch"),
        (["--dim", "trips=3"], "fixes how often each of its loops runs"),
        (["--seq", "3"], "takes no 'seq'"),
    ],
)
def test_options_of_other_programs_are_refused(own, options, words):
    for command in (["estimate", own("product"), "--device", GPU],
                    ["compare", own("product"), "--devices", f"{GPU},{TPU}"]):  # fmt: skip
        found = _run(*command, *options)
        assert found.exit_code != 0
        assert words in " ".join(found.output.split())


def test_trips_reach_a_function_of_a_file(own, tmp_path: Path):
    for trips in (3, 12):
        file = tmp_path / f"{trips}.json"
        found = _run("estimate", own("loop"), "--device", TPU, "--dim", f"trips={trips}",
                     "--json", str(file))  # fmt: skip
        assert found.exit_code == 0, found.output
        assert json.loads(file.read_text())["workload"]["matmul_flops"] == trips * 2 * 64**3
    assert "this target has none" in _run(
        "estimate", own("module"), "--device", GPU, "--dim", "trips=3"
    ).output.replace("\n", " ")


def test_a_program_is_lowered_for_the_platform_of_each_device(own, tmp_path: Path):
    target, work = own("platform"), {GPU: 2, TPU: 1}
    for order in ((GPU, TPU), (TPU, GPU)):
        file = tmp_path / f"{order[0]}.json"
        names = [word for device in order for word in ("--device", device)]
        assert _run("estimate", target, *names, "--json", str(file)).exit_code == 0
        for row in json.loads(file.read_text()):
            assert row["workload"]["matmul_flops"] == work[row["device"]] * PRODUCT
        alone = {d: predictor.estimate(target, device=d) for d in order}
        for estimate in predictor.compare(target, devices=list(order)):
            device = estimate.device.id
            assert estimate.workload.matmul_flops == work[device] * PRODUCT
            assert estimate.latency_us == alone[device].latency_us


@pytest.mark.parametrize(("platform", "products"), [(None, 2), ("cuda", 2), ("tpu", 1), ("cpu", 0)])
def test_capture_takes_the_platform(own, tmp_path: Path, platform, products):
    out = tmp_path / "graph.json"
    option = [] if platform is None else ["--platform", platform]
    assert _run("capture", own("platform"), "--out", str(out), *option).exit_code == 0
    ops = [n.op for n in predictor.capture(str(out)).nodes]
    assert ops.count("stablehlo.dot_general") == products
    assert "one of: cuda, tpu, cpu" in _run(
        "capture", own("platform"), "--out", str(out), "--platform", "abacus"
    ).output.replace("\n", " ")


def test_a_device_that_cannot_run_it_leaves_the_others(own, tmp_path: Path):
    file = tmp_path / "rows.json"
    found = _run("estimate", own("wide"), "--device", GPU, "--device", TPU, "--json", str(file))
    assert found.exit_code == 1
    assert f"{TPU} is refused" in found.output
    assert f"on  {GPU}" in found.output
    assert [row["device"] for row in json.loads(file.read_text())] == [GPU]
    compared = _run("compare", own("wide"), "--devices", f"{GPU},{TPU}")
    assert (compared.exit_code, f"refused {TPU}" in compared.output) == (0, True)
    alone = _run("estimate", own("wide"), "--device", TPU)
    assert alone.exit_code == 2
    assert TPU in alone.output
