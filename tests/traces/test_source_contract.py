"""What every importer keeps to. A new source adds its sample layout to `SAMPLES`."""

from __future__ import annotations

import gzip
import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from predictor.errors import DataError
from predictor.features.columns import node_features
from predictor.features.table import KernelTable
from predictor.graph.ir import PHASES
from predictor.hardware.catalogue import resolve_device
from predictor.hardware.device import Software
from predictor.traces.flags import unknown_flag
from predictor.traces.import_report import ImportReport
from predictor.traces.merge import merged
from predictor.traces.schema import TABLES, Imported, MeasuredGraph, column_kind, kernel_table
from predictor.traces.sources.registry import SOURCES, read_source
from predictor.traces.store import read_imported, write_imported
from predictor.traces.validate import keep_valid, known_devices

SAMPLES: Mapping[str, Callable[[Any], Path]] = {
    "aiconfigurator": lambda root: root,
    "gptbench": lambda folder: copied("gptbench_sample", folder),
    "aiter": lambda folder: copied("aiter_sample", folder),
    "deepbench": lambda folder: copied("deepbench_sample", folder),
    "enzyme": lambda folder: copied("enzyme_sample", folder),
    "kineto": lambda folder: copied("kineto_sample", folder),
    "vidur": lambda folder: copied("vidur_sample", folder),
    "neusight": lambda writer: writer.complete(),
    "own": lambda root: root,
    "rows": lambda folder: copied("rows_sample", folder),
    "steps": lambda folder: copied("steps_sample", folder),
    "scalesim": lambda folder: copied("scalesim_sample", folder),
    "timm": lambda folder: timm_sample(folder),
    "tpugraphs": lambda folder: copied("tpugraphs_sample", folder),
    "tpurecipes": lambda folder: copied("tpurecipes_sample", folder),
}
"""A small layout of each source, written by the fixture of its name."""
WRITERS: Mapping[str, str] = {
    "aiconfigurator": "aiconfigurator_root",
    "aiter": "tmp_path",
    "deepbench": "tmp_path",
    "enzyme": "tmp_path",
    "gptbench": "tmp_path",
    "kineto": "tmp_path",
    "neusight": "layout",
    "own": "own_root",
    "rows": "tmp_path",
    "steps": "tmp_path",
    "scalesim": "tmp_path",
    "timm": "tmp_path",
    "tpugraphs": "tmp_path",
    "tpurecipes": "tmp_path",
    "vidur": "tmp_path",
}


def timm_sample(folder: Path) -> Path:
    """Two tables of timm's benchmark."""
    results = folder / "layout" / "results"
    results.mkdir(parents=True)
    for mode, rest in (("infer", "pt240-cu124-rtx4090"), ("train", "pt112-cu113-rtx3090")):
        head = [f"{mode}_{c}" for c in ("samples_per_sec", "step_time", "batch_size", "img_size")]
        text = ",".join(["model", *head]) + "\nresnet18,10000,25.6,256,224\nvit_x,500,128,64,384\n"
        (results / f"benchmark-{mode}-amp-nchw-{rest}.csv").write_text(text)
    return folder / "layout"


def copied(sample: str, folder: Path) -> Path:
    """A copy of a sample that stands beside this file."""
    return Path(shutil.copytree(Path(__file__).parent / sample, folder / "layout"))


def same_graph(a: MeasuredGraph, b: MeasuredGraph) -> bool:
    """Equal in every value and type."""
    arrays = [
        (getattr(a, n), getattr(b, n)) for n in ("weight", "node", "node_weight", "edge_index")
    ]
    arrays += [(getattr(a.table, f.name), getattr(b.table, f.name)) for f in fields(KernelTable)]
    return (a.name, a.nodes, a.node_class) == (b.name, b.nodes, b.node_class) and all(
        x.dtype == y.dtype and np.array_equal(x, y) for x, y in arrays
    )


def assert_same(a: Imported, b: Imported) -> None:
    """Equal in every row, graph and count."""
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(a, table), getattr(b, table), check_exact=True)
    assert list(a.graphs) == list(b.graphs)
    assert all(same_graph(a.graphs[name], b.graphs[name]) for name in a.graphs)
    assert (a.source, a.dropped, a.rejects, a.files, a.left_out) == (
        b.source, b.dropped, b.rejects, b.files, b.left_out,
    )  # fmt: skip


def read(source: str, folder: Path) -> Imported:
    """All parts of a source as one."""
    return merged(SOURCES[source].parts(folder))


def test_every_source_has_a_sample():
    assert set(SAMPLES) == set(WRITERS) == set(SOURCES)


@pytest.mark.parametrize("source", sorted(SOURCES))
class TestSource:
    """The contract."""

    @pytest.fixture
    def folder(self, source: str, request: pytest.FixtureRequest) -> Path:
        return SAMPLES[source](request.getfixturevalue(WRITERS[source]))

    @pytest.fixture
    def data(self, source: str, folder: Path) -> Imported:
        return read(source, folder)

    def test_tables_have_their_columns_and_types(self, source, data):
        assert data.source == source
        for table, columns in TABLES.items():
            frame = getattr(data, table)
            assert tuple(frame.columns) == columns
            for column in columns:
                kind = {"i": "integer", "f": "number"}.get(frame[column].dtype.kind, "text")
                assert kind == column_kind(column), (table, column)

    def test_something_is_read_and_nothing_of_a_sound_sample_is_dropped(self, source, data):
        assert len(data.kernels) + len(data.steps) > 0
        assert not data.dropped and not data.rejects

    def test_row_ids_are_unique_and_stable(self, source, folder, data):
        for table in ("kernels", "steps", "ops"):
            ids = getattr(data, table)["row_id"]
            assert ids.is_unique
            assert all(i.startswith(f"{source}:") for i in ids)
        assert_same(data, read(source, folder))

    def test_rows_name_devices_of_the_catalogue(self, source, data):
        for table in TABLES:
            assert set(getattr(data, table)["device"]) <= known_devices()

    def test_flags_are_known(self, source, data):
        for table in ("kernels", "steps", "ops"):
            flags = set(getattr(data, table)["flag"]) - {""}
            assert not [flag for flag in flags if unknown_flag(flag)]

    def test_rows_pass_the_rules(self, source, data):
        before = {table: getattr(data, table).copy() for table in TABLES}
        keep_valid(data)  # a second pass drops nothing and changes nothing
        assert not data.dropped
        for table, frame in before.items():
            pd.testing.assert_frame_equal(frame, getattr(data, table))

    def test_kernel_rows_become_finite_features(self, source, data):
        for device, rows in data.kernels.groupby("device"):
            features = node_features(kernel_table(rows), resolve_device(str(device)), Software())
            assert np.isfinite(features.x).all()
            assert (features.roofline.base_us > 0).all()

    def test_steps_that_can_be_scored_have_a_graph(self, source, data):
        scorable = data.steps[(data.steps["flag"] == "") & (data.steps["graph"] != "")]
        if data.graphs:  # else they stand in a graph bank
            assert set(scorable["graph"]) <= set(data.graphs)
        assert (scorable["latency_us"] > 0).all()

    def test_graphs_are_sound(self, source, data):
        for name, graph in data.graphs.items():
            producer, consumer = graph.edge_index
            assert graph.name == name
            assert (producer < consumer).all()
            assert len(graph.table) == len(graph.weight) == len(graph.node)
            assert (graph.weight >= 1).all()
            assert graph.node.max() < len(graph.nodes) == len(graph.node_class)
            order = graph.table.phase
            assert (np.diff(order) >= 0).all(), f"not in the order of {PHASES}"

    def test_ops_point_at_nodes_of_their_graph(self, source, data):
        for name, ops in data.ops.groupby("graph"):
            graph = data.graphs[str(name)]
            assert ops["node"].between(0, len(graph.nodes) - 1).all()
            assert np.array_equal(ops["weight"], graph.node_weight[ops["node"]])

    def test_files_are_remembered_by_content(self, source, folder, data):
        assert data.files
        for path, file in data.files.items():
            raw = (folder / path).read_bytes()
            content = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
            assert file.sha256 == hashlib.sha256(content).hexdigest()

    def test_every_row_names_a_file_that_was_read(self, source, data):
        assert set(data.kernels["file"]) | set(data.steps["file"]) <= set(data.files)

    def test_every_row_states_its_licence(self, source, data):
        for table in ("kernels", "steps"):
            assert (getattr(data, table)["licence"] != "").all()

    def test_nothing_there_is_an_error(self, source, tmp_path):
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError, match="empty"):
            read(source, tmp_path / "empty")

    def test_the_store_gives_back_what_it_got(self, source, data, tmp_path):
        write_imported(source, [data], tmp_path / "out")
        assert_same(read_imported(tmp_path / "out"), data)

    def test_an_import_is_read_like_the_published_files(self, source, folder, data, tmp_path):
        write_imported(source, [data], tmp_path / "imports" / source)
        for place in (tmp_path / "imports", tmp_path / "imports" / source):
            assert_same(read_source(source, [place]), data)

    def test_the_same_folder_twice_gives_every_row_once(self, source, folder, data):
        twice = read_source(source, [folder, folder])
        for table in TABLES:
            pd.testing.assert_frame_equal(getattr(twice, table), getattr(data, table))

    def test_the_report_counts_what_was_kept(self, source, data, tmp_path):
        report = write_imported(source, [data], tmp_path / "out")
        assert isinstance(report, ImportReport)
        assert report.rows["kernels"] == len(data.kernels)
        assert f"{len(data.steps):,}  step rows" in str(report)
        assert "dropped: none" in str(report)
