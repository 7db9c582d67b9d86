"""Files that are no StableHLO, hostile ones, and what a user can get wrong with a JAX program."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("jax", reason="StableHLO is read with the jax extra")

import jax
import jax.numpy as jnp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import predictor
from predictor.errors import CaptureError, MissingExtraError, PredictorError, UnknownTargetError

ADD = "stablehlo.add %x, %x : tensor<4xf32>"
ADD_ONE = f"%0 = {ADD} return %0 : tensor<4xf32>"


def _main(body: str, result: str = "tensor<4xf32>", argument: str = "tensor<4xf32>") -> str:
    return f"func.func public @main(%x: {argument}) -> {result} {{\n{body}\n}}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b"\x00\xff\xfe garbage", "neither StableHLO text nor MLIR bytecode"),
        (b"HloModule m\nENTRY e { }", "is not StableHLO"),
        (b"ML\xefR\x0dStableHLO_v1.0.0\x00 cut off", "is not StableHLO"),
        (b"module { }", "holds no function"),
        (_main("return %x : tensor<?xf32>", "tensor<?xf32>", "tensor<?xf32>"), "dynamic shape"),
        (_main("return %x : tuple<>", "tuple<>", "tuple<>"), "values of type tuple"),
        (_main("return %x : tensor<4xi128>", "tensor<4xi128>", "tensor<4xi128>"), "i128"),
        ("module {" * 5000 + "}" * 5000, "brackets nest"),
        (_main("return %x : tensor<9000000000x9000000000xf32>", "tensor<9000000000x9000000000xf32>",
               "tensor<9000000000x9000000000xf32>"), "no device holds it"),
        ("func.func private @main(%x: tensor<4xf32>) -> tensor<4xf32>", "has no body"),
        (
            _main("%0 = call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>\n"
                  "return %0 : tensor<4xf32>"),
            "calls nest more than",
        ),
    ],
)  # fmt: skip
def test_files_that_hold_no_program(tmp_path: Path, text, words):
    file = tmp_path / "odd.mlir"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PredictorError, match=words):
        predictor.capture(str(file))


def test_calls_that_double_are_cut_off(tmp_path: Path):
    """30 functions that call the next one twice: 2^30 operations after inlining."""
    parts = [
        f"""func.func private @f{i}(%x: tensor<4xf32>) -> tensor<4xf32> {{
    %a = call @f{i + 1}(%x) : (tensor<4xf32>) -> tensor<4xf32>
    %b = call @f{i + 1}(%a) : (tensor<4xf32>) -> tensor<4xf32>
    return %b : tensor<4xf32>
  }}"""
        for i in range(30)
    ]
    last = f"func.func private @f30(%x: tensor<4xf32>) -> tensor<4xf32> {{\n%a = {ADD}\n"
    last += "return %a : tensor<4xf32>\n}"
    call = "%a = call @f0(%x) : (tensor<4xf32>) -> tensor<4xf32>\nreturn %a : tensor<4xf32>"
    file = tmp_path / "doubling.mlir"
    file.write_text("\n".join(["module {", _main(call), *parts, last, "}"]))
    with pytest.raises(CaptureError, match="operations after inlining"):
        predictor.capture(str(file))


def test_large_constants_are_not_read(tmp_path: Path):
    """A weight that was elided when the text was written has a size all the same."""
    body = (
        "%w = stablehlo.constant dense_resource<__elided__> : tensor<1024x1024xf32>\n"
        "%y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : "
        "(tensor<8x1024xf32>, tensor<1024x1024xf32>) -> tensor<8x1024xf32>\n"
        "return %y : tensor<8x1024xf32>"
    )
    file = tmp_path / "elided.mlir"
    file.write_text(_main(body, "tensor<8x1024xf32>", "tensor<8x1024xf32>"))
    found = predictor.estimate(str(file), device="nvidia-t4")
    assert found.workload.matmul_flops == 2 * 8 * 1024 * 1024
    assert found.workload.bytes == 4 * (1024 * 1024 + 2 * 8 * 1024)


@given(cut=st.integers(0, 400), junk=st.binary(max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_text_is_a_typed_error_or_a_program(tmp_path: Path, cut: int, junk: bytes):
    text = _main(f"%0 = {ADD}\nreturn %0 : tensor<4xf32>").encode()
    file = tmp_path / "damaged.mlir"
    file.write_bytes(text[:cut] + junk + text[cut + len(junk) :])
    try:
        predictor.capture(str(file))
    except PredictorError as error:
        assert "\n" not in str(error)


def test_bytecode_is_read_like_text(tmp_path: Path):
    jitted = jax.jit(lambda x, w: jnp.tanh(x @ w))
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 16), (16, 4))]
    exported = jax.export.export(jitted, platforms=["tpu"])(*args)
    file = tmp_path / "program.mlirbc"
    file.write_bytes(exported.mlir_module_serialized)
    ops = [n.op for n in predictor.capture(str(file)).nodes]
    assert ops == [n.op for n in predictor.capture(exported).nodes]
    assert ops == [n.op for n in predictor.capture(jitted, *args).nodes]
    assert ops == [n.op for n in predictor.capture(jitted.lower(*args)).nodes]


def test_a_program_that_cannot_be_traced_says_where():
    def wrong(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(CaptureError, match=r"cannot lower wrong.*test_odd_files.py.*x.sum"):
        predictor.capture(jax.jit(wrong), jax.ShapeDtypeStruct((4,), jnp.float32))


@pytest.mark.parametrize(
    "option", [{"dtype": "bf16"}, {"batch": 3}, {"seq": 3}, {"recompute": True}]
)
def test_a_lowered_program_has_decided(option):
    with pytest.raises(CaptureError, match="decides its own"):
        predictor.capture(jax.jit(jnp.tanh), jax.ShapeDtypeStruct((4,), jnp.float32), **option)


def test_missing_files_and_extras(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with pytest.raises(UnknownTargetError, match=r"no file .nowhere\.mlir."):
        predictor.capture("nowhere.mlir")
    file = tmp_path / "program.mlir"
    file.write_text(_main(f"%0 = {ADD}\nreturn %0 : tensor<4xf32>"))
    monkeypatch.setitem(sys.modules, "jaxlib.mlir", None)
    with pytest.raises(MissingExtraError, match="jax"):
        predictor.capture(str(file))


@pytest.mark.parametrize(("rows", "summed", "kernels"), [(0, 8, 0), (8, 0, 1)])
def test_tensors_without_elements(tmp_path: Path, rows: int, summed: int, kernels: int):
    x, w, y = f"tensor<{rows}x{summed}xf32>", f"tensor<{summed}x4xf32>", f"tensor<{rows}x4xf32>"
    file = tmp_path / "empty.mlir"
    file.write_text(
        f"func.func public @main(%x: {x}, %w: {w}) -> {y} {{\n"
        f"%y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({x}, {w}) -> {y}\n"
        f"return %y : {y}\n}}"
    )
    found = predictor.estimate(str(file), device="nvidia-t4")
    assert (found.workload.kernels, found.workload.flops) == (kernels, 0)


def test_trips_for_loops_that_are_counted_are_refused():
    def run(x):
        return jax.lax.fori_loop(0, 3, lambda _, y: jnp.tanh(y), x)

    x = jax.ShapeDtypeStruct((4,), jnp.float32)
    with pytest.raises(CaptureError, match="fixes how often each of its loops runs"):
        predictor.capture(jax.jit(run), x, dims={"trips": 5})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("func.func private @f(%x: T) -> T { return %x : T }", r"private functions alone \(@f\)"),
        (
            "func.func @f(%x: T) -> T { return %x : T }\n"
            "func.func @g(%x: T) -> T { return %x : T }",
            r"more than one public function \(@f, @g\)",
        ),
    ],
)
def test_a_module_without_a_main_says_what_it_holds(tmp_path: Path, text: str, words: str):
    file = tmp_path / "main.mlir"
    file.write_text(f"module {{ {text} }}".replace("T", "tensor<4xf32>"))
    with pytest.raises(CaptureError, match=words):
        predictor.capture(str(file))


def test_the_only_public_function_is_the_program(tmp_path: Path):
    file = tmp_path / "step.mlir"
    private = f"func.func private @f(%x: tensor<4xf32>) -> tensor<4xf32> {{ {ADD_ONE} }}"
    call = "%0 = call @f(%x) : (tensor<4xf32>) -> tensor<4xf32> return %0 : tensor<4xf32>"
    public = f"func.func @step(%x: tensor<4xf32>) -> tensor<4xf32> {{ {call} }}"
    file.write_text(f"module {{ {private}\n{public} }}")
    assert [n.op for n in predictor.capture(str(file)).nodes] == ["stablehlo.add"]


@pytest.mark.parametrize("suffix", ["mlir", "mlirbc", "onnx", "pt2", "json"])
def test_a_folder_is_no_file(tmp_path: Path, suffix: str):
    folder = tmp_path / f"folder.{suffix}"
    folder.mkdir()
    with pytest.raises(UnknownTargetError, match="is a folder, not a file"):
        predictor.capture(str(folder))


def test_cut_bytecode_is_one_line_and_nothing_else(tmp_path: Path, capfd):
    exported = jax.export.export(jax.jit(jnp.tanh), platforms=["tpu"])(
        jax.ShapeDtypeStruct((4,), jnp.float32)
    )
    file = tmp_path / "cut.mlirbc"
    data = exported.mlir_module_serialized
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(CaptureError, match="is not StableHLO that this jaxlib reads: attempting"):
        predictor.capture(str(file))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("device", ["nvidia-t4", "google-tpu-v5e"])
@pytest.mark.parametrize("run", [lambda x: x, lambda x: x + 1])
def test_a_program_that_launches_nothing_says_so(device, run):
    rows = 0 if run(1) == 2 else 4
    found = predictor.estimate(
        jax.jit(run), jax.ShapeDtypeStruct((rows, 8), jnp.float32), device=device
    )
    assert (found.workload.kernels, found.latency_us, found.software.framework) == (0, 0.0, "jax")
    assert any("no kernel is launched, so that there is no time" in w for w in found.warnings)


def test_a_transform_without_measured_rows_is_opaque_and_listed():
    x = jax.ShapeDtypeStruct((64, 1024), jnp.complex64)
    found = predictor.estimate(jax.jit(jnp.fft.fft), x, device="nvidia-t4")
    assert found.coverage.opaque == 1.0
    assert any("opaque operations, from their roofline" in w and "fft (1)" in w
               for w in found.warnings)  # fmt: skip
