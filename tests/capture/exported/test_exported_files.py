"""Files of exported programs: read as data, never run; damaged ones are refused in bounded time."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

import predictor
from predictor.capture.exported import archive as archives
from predictor.capture.exported.archive import read_archive
from predictor.errors import CaptureError, PredictorError, UnknownTargetError

Saved = Callable[..., str]
Edit = Callable[[dict[str, Any]], object]
PROGRAM = "program/models/model.json"


class Touches:
    """Pickled, it writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.fixture
def path(saved: Saved) -> Path:
    return Path(saved(nn.Linear(4, 2), torch.zeros(3, 4)))


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(path: Path, files: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> str:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return str(path)


def edited(path: Path, edit: Edit) -> str:
    """The file with its program changed by `edit`."""
    files = members(path)
    program = json.loads(files[PROGRAM])
    edit(program)
    return written(path, {**files, PROGRAM: json.dumps(program).encode()})


def first_call(program: dict[str, Any]) -> dict[str, Any]:
    call: dict[str, Any] = program["graph_module"]["graph"]["nodes"][0]
    return call


# -- nothing of a file runs -----------------------------------------------------------------------


def test_no_pickle_in_a_file_runs(path: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    payload = pickle.dumps(Touches(mark))
    saved = io.BytesIO()
    torch.save(Touches(mark), saved)
    files = members(path)
    config = json.loads(files["program/data/weights/model_weights_config.json"])
    for held in config["config"].values():
        held["use_pickle"] = True
    hostile = {
        name: saved.getvalue() if "/data/" in name and not name.endswith(".json") else data
        for name, data in files.items()
    }
    hostile["program/data/weights/model_weights_config.json"] = json.dumps(config).encode()
    hostile["program/data/constants/opaque_obj_0"] = payload
    target = written(path, hostile)
    graph = predictor.capture(target)
    assert [n.op for n in graph.nodes] == ["aten.t", "aten.addmm"]
    assert not mark.exists()
    pickle.loads(payload)  # it would have written the file
    assert mark.exists()


@pytest.mark.parametrize("size", ["__import__('os').system('touch {}')", "exec('1')", "open('{}')"])
def test_no_size_in_a_file_is_evaluated_as_code(size: str, path: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    def edit(program: dict[str, Any]) -> None:
        graph = program["graph_module"]["graph"]
        graph["tensor_values"]["input"]["sizes"][0] = {
            "as_expr": {"expr_str": size.format(mark), "hint": None}
        }

    with pytest.raises(CaptureError):
        predictor.capture(edited(path, edit))
    assert not mark.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.save.default",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten._print.default",
        "torch.ops.mylib.op.default",
        "torch.load",
        "torch.hub.load",
        "_operator.methodcaller",
        "os.system",
        "torch.ops.higher_order.call_torchbind",
        "#extension:op",
    ],
)
def test_only_operators_on_shapes_run(target: str, path: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    def edit(program: dict[str, Any]) -> None:
        call = first_call(program)
        call["target"] = target
        call["inputs"] = [{"name": "", "arg": {"as_string": str(mark)}, "kind": 1}]

    try:
        graph = predictor.capture(edited(path, edit))
    except CaptureError:
        pass
    else:  # taken as described: it is there by name, and was not called
        assert target.removeprefix("torch.ops.").rpartition(".")[0] in {n.op for n in graph.nodes}
    assert not mark.exists()


def test_weights_are_not_read(path: Path) -> None:
    """A program of 10 GB: the member is a hole in the file, and reading it would show."""
    size = 10 * 10**9
    files = members(path)
    files.pop("program/data/weights/weight_0")
    written(path, files)
    with zipfile.ZipFile(path) as archive:
        start, rest = archive.start_dir, path.read_bytes()
    name = b"program/data/weights/weight_0"
    ends = struct.pack("<Q", size)
    local = b"PK\x03\x04" + struct.pack("<HHHHHIIIHH", 45, 0, 0, 0, 0, 0, 2**32 - 1, 2**32 - 1,
                                        len(name), 20) + name  # fmt: skip
    local += struct.pack("<HH", 1, 16) + ends + ends
    central = b"PK\x01\x02" + struct.pack("<HHHHHHIIIHHHHHII", 45, 45, 0, 0, 0, 0, 0, 2**32 - 1,
                                          2**32 - 1, len(name), 20, 0, 0, 0, 0, start)  # fmt: skip
    central += name + struct.pack("<HH", 1, 16) + ends + ends
    at = start + len(local) + size
    directory = rest[start : rest.rindex(b"PK\x05\x06")] + central
    count = len(files) + 1
    end64 = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count,
                                        len(directory), at)  # fmt: skip
    place = b"PK\x06\x07" + struct.pack("<IQI", 0, at + len(directory), 1)
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 2**16 - 1, 2**16 - 1, 2**32 - 1,
                                      2**32 - 1, 0)  # fmt: skip
    with path.open("r+b") as file:
        file.seek(start)
        file.write(local)
        file.seek(at)
        file.write(directory + end64 + place + end)

    class Counting(io.FileIO):
        count = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(-1 if size is None else size) or b""
            Counting.count += len(data)
            return data

    with Counting(path) as file:
        assert file.seek(0, 2) > size
        description = read_archive(file, "program.pt2")  # type: ignore[arg-type]
    assert description.payloads["weight"]["path_name"] == "weight_0"
    assert Counting.count < 1 << 20
    assert [n.op for n in predictor.capture(str(path)).nodes] == ["aten.t", "aten.addmm"]


# -- files that are something else ----------------------------------------------------------------


def test_there_is_no_file() -> None:
    with pytest.raises(UnknownTargetError, match=r"no file 'nothing\.pt2'"):
        predictor.capture("nothing.pt2")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(UnknownTargetError, match="is a folder, not a file"):
        predictor.capture(str(tmp_path / "folder.pt2"))


def refused(target: str) -> str:
    with pytest.raises(CaptureError) as failed:
        predictor.capture(target)
    assert "\n" not in str(failed.value)
    return str(failed.value)


@pytest.mark.parametrize(
    "data", [b"", b"PK", b"not an archive" * 100, b"\0" * 70_000, b"PK\x05\x06"]
)
def test_files_that_are_no_archive(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "program.pt2"
    path.write_bytes(data)
    assert "no archive of torch.export.save" in refused(str(path))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_files_cut_short(share: float, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert "cut short" in refused(str(path))


def test_other_archives_say_what_they_are(path: Path, tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, path)
    assert "a pickle of torch.save, and reading it would run its code" in refused(str(path))
    compiled = {"m/data/aotinductor/model/code.so": b"", "m/archive_format": b"pt2"}
    assert "compiled code (AOTInductor)" in refused(written(path, compiled))
    assert "without an exported program" in refused(written(path, {"a/b": b""}))
    assert "without an exported program" in refused(written(path, {}))


def test_several_programs_are_refused(path: Path) -> None:
    files = members(path)
    assert "holds 2 programs" in refused(
        written(path, {**files, "program/models/other.json": files[PROGRAM]})
    )


def test_members_twice_are_refused(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(PROGRAM, b"{}")
    assert "twice" in refused(str(path))


def test_names_that_escape_are_only_names(path: Path, tmp_path: Path) -> None:
    files = members(path)
    config = json.loads(files["program/data/weights/model_weights_config.json"])
    config["config"]["weight"]["path_name"] = "../../../../etc/passwd"
    files["program/data/weights/model_weights_config.json"] = json.dumps(config).encode()
    files["program/../../escaped"] = b"x"
    graph = predictor.capture(written(path, files))
    assert len(graph.nodes) == 2
    assert not (tmp_path.parent / "escaped").exists()


# -- sizes that would take all memory -------------------------------------------------------------


def test_a_description_that_unpacks_without_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "LARGEST_DESCRIPTION", 1 << 20)
    files = {**members(path), PROGRAM: b" " * (1 << 24)}
    target = written(path, files, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 17
    assert "is larger than 1 MiB" in refused(target)


def test_a_list_of_members_without_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGEST_DIRECTORY", 1 << 10)
    assert "lists" in refused(written(path, {f"member {i}": b"" for i in range(100)}))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_nobody_uses(method: int, path: Path) -> None:
    assert "compressed in a way" in refused(written(path, members(path), method))


def test_descriptions_nested_without_end(path: Path) -> None:
    deep = b'{"graph_module":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert "damaged" in refused(written(path, {**members(path), PROGRAM: deep}))


@pytest.mark.parametrize(
    "size",
    [
        {"as_int": 2**70},
        {"as_int": -4},
        {"as_expr": {"expr_str": "Pow(Integer(10), Pow(Integer(10), Integer(10)))"}},
        {"as_expr": {"expr_str": "Mul(" * 300 + "Integer(2)" + ")" * 300}},
        {"as_expr": {"expr_str": "9" * 4000}},
        {"as_expr": {"expr_str": "s" * 5000}},
        {"as_expr": {"expr_str": "Pow(Integer(2), Integer(-1))"}},
        {"as_expr": {"expr_str": "1//0"}},
        {"as_expr": {"expr_str": ""}},
    ],
)
def test_sizes_that_no_tensor_has(size: dict[str, Any], path: Path) -> None:
    def edit(program: dict[str, Any]) -> None:
        program["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0] = size

    assert refused(edited(path, edit))


def test_calls_that_make_tensors_without_end(path: Path) -> None:
    def edit(program: dict[str, Any]) -> None:
        graph = program["graph_module"]["graph"]
        graph["tensor_values"]["input"]["sizes"][0] = {"as_int": 10**9}
        graph["nodes"][0] |= {
            "target": "torch.ops.aten.split.Tensor",
            "inputs": [
                {"name": "self", "arg": {"as_tensor": {"name": "input"}}, "kind": 1},
                {"name": "split_size", "arg": {"as_int": 1}, "kind": 1},
            ],
        }

    assert "makes 1,000,000,000 tensors" in refused(edited(path, edit))


def test_calls_that_come_to_calls_without_end(path: Path) -> None:
    def edit(program: dict[str, Any]) -> None:
        graph = program["graph_module"]["graph"]
        graph["tensor_values"]["input"]["sizes"][0] = {"as_int": 10**9}
        graph["nodes"][0] |= {
            "target": "torch.ops.aten.diff.default",
            "inputs": [
                {"name": "self", "arg": {"as_tensor": {"name": "input"}}, "kind": 1},
                {"name": "n", "arg": {"as_int": 10**9}, "kind": 1},
                {"name": "dim", "arg": {"as_int": 0}, "kind": 1},
            ],
        }

    assert "makes more than 20,064 calls" in refused(edited(path, edit))


def test_values_without_end_are_not_worked_out(path: Path) -> None:
    """A chain of large values that the program reads at its end."""

    def arguments(**given: Any) -> list[dict[str, Any]]:
        return [{"name": k, "arg": v, "kind": 1} for k, v in given.items()]

    def edit(program: dict[str, Any]) -> None:
        graph = program["graph_module"]["graph"]
        calls = [
            {"target": "torch.ops.aten.arange.default", "metadata": {},
             "inputs": arguments(end={"as_int": 2**24}), "outputs": [{"as_tensor": {"name": "v0"}}]}
        ]  # fmt: skip
        for i in range(200):
            operand = {"as_tensor": {"name": f"v{i}"}}
            calls.append(
                {"target": "torch.ops.aten.add.Tensor", "metadata": {},
                 "inputs": arguments(self=operand, other=operand),
                 "outputs": [{"as_tensor": {"name": f"v{i + 1}"}}]}
            )  # fmt: skip
        last = {"as_tensor": {"name": "v200"}}
        total = {"as_tensor": {"name": "total"}}
        calls.append({"target": "torch.ops.aten.sum.default", "metadata": {},
                      "inputs": arguments(self=last), "outputs": [total]})  # fmt: skip
        calls.append({"target": "torch.ops.aten.item.default", "metadata": {},
                      "inputs": arguments(self=total),
                      "outputs": [{"as_sym_int": {"as_name": "u"}}]})  # fmt: skip
        graph["nodes"] = calls + graph["nodes"]

    assert "reads the value of a tensor" in refused(edited(path, edit))


# -- descriptions that are damaged ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda p: p["schema_version"].update(major=9), "schema version 9."),
        (lambda p: p.update(schema_version=7), "schema version 7 is older"),
        (lambda p: p.pop("graph_module"), "does not follow the schema"),
        (lambda p: p["graph_module"]["graph"].pop("nodes"), "does not follow the schema"),
        (lambda p: p["graph_module"]["graph"]["tensor_values"].clear(), "does not follow"),
        (lambda p: first_call(p).update(inputs=[]), "cannot capture"),
        (lambda p: first_call(p)["inputs"][0].update(name="nothing"), "takes no argument"),
        (lambda p: first_call(p)["inputs"][0]["arg"]["as_tensor"].update(name="n"), "before it"),
        (lambda p: first_call(p)["outputs"].append({"as_none": True}), "names 2"),
        (lambda p: p["graph_module"]["graph"]["inputs"].pop(), "takes 2 inputs, got 3"),
        (lambda p: p["graph_module"]["graph"]["tensor_values"]["input"].update(layout=1), "sparse"),
        (lambda p: p["graph_module"]["graph"]["tensor_values"]["input"].update(dtype=99), "schema"),
    ],
)  # fmt: skip
def test_damaged_descriptions_are_refused(edit: Edit, said: str, path: Path) -> None:
    assert said in refused(edited(path, edit))


def test_a_newer_minor_version_with_new_fields_is_read(path: Path) -> None:
    def edit(program: dict[str, Any]) -> None:
        program["schema_version"]["minor"] = 99
        program["field_of_the_future"] = {"a": 1}
        first_call(program)["field_of_the_future"] = None

    assert len(predictor.capture(edited(path, edit)).nodes) == 2


def test_files_of_older_versions_are_read(path: Path) -> None:
    """PyTorch before 2.8 wrote its members at the top, and arguments without their kind."""
    files = members(path)
    program = json.loads(files[PROGRAM])
    program["schema_version"]["minor"] = 2
    for call in program["graph_module"]["graph"]["nodes"]:
        call.pop("name")
        call.pop("is_hop_single_tensor_return")
        for argument in call["inputs"]:
            argument.pop("kind")
    old = {
        "version": b"8.2",
        "serialized_exported_program.json": json.dumps(program).encode(),
        "serialized_state_dict.pt": b"a pickle",
        "serialized_constants.pt": b"a pickle",
        "serialized_example_inputs.pt": b"a pickle",
    }
    assert [n.op for n in predictor.capture(written(path, old)).nodes] == ["aten.t", "aten.addmm"]


@given(
    places=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8),
    whole=st.booleans(),
)
@example(places=[(0.994393839140643, 129)], whole=True)  # a member past the end of any file
@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
def test_damaged_bytes_are_read_or_refused(
    places: list[tuple[float, int]], whole: bool, path: Path, tmp_path: Path
) -> None:
    """Bytes changed anywhere, or inside the description: a graph or a typed refusal."""
    files = members(path)
    data = bytearray(path.read_bytes() if whole else files[PROGRAM])
    for share, value in places:
        data[int(share * (len(data) - 1))] = value
    target = tmp_path / "damaged.pt2"
    if whole:
        target.write_bytes(data)
    else:
        written(target, {**files, PROGRAM: bytes(data)})
    try:
        predictor.capture(str(target))
    except PredictorError as error:
        assert str(error)
