"""Enzyme-JAX's benchmark: which rows are kept, their graphs, and the noise between runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from predictor.fit.model_samples import banks_of, model_samples
from predictor.nn.priors import XLA_LAUNCH_US
from predictor.traces.files import LayoutNotFoundError
from predictor.traces.graph_bank import load_bank
from predictor.traces.merge import merged
from predictor.traces.sources import enzyme

HEAD = "program,pipeline,backend,mode,n,median_s,min_s,max_s\n"


def read(folder: Path, *lines: str):
    (folder / "enzyme_jax_device_times.csv").write_text(HEAD + "\n".join(lines) + "\n")
    return merged(enzyme.parts(folder))


def test_the_sample_keeps_plain_jax_on_devices(tmp_path):
    sample = Path(__file__).parent / "enzyme_sample"
    shutil.copytree(sample, tmp_path / enzyme.FOLDER)
    data = merged(enzyme.parts(tmp_path))
    assert set(data.steps["device"]) == {"nvidia-a100-sxm-40gb", "google-tpu-v6e"}
    assert set(data.steps["measure"]) == {"device_span"}


def test_a_row_becomes_a_step(tmp_path):
    row = read(tmp_path, "add_one,Jax,tpu,BothRev,13,2.24e-06,2.18e-06,2.25e-06").steps.iloc[0]
    assert row["row_id"] == "enzyme:add_one/BothRev/tpu"
    assert (row["model"], row["mode"], row["batch"]) == ("add_one/BothRev", "train", 1)
    assert row["latency_us"] == pytest.approx(2.24)
    assert row["spread_us"] == pytest.approx(0.07 / 3.336, rel=1e-3)  # mean range of 13 draws
    assert load_bank(source="enzyme").graph(row["graph"]).kernels > 0


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("add_one,DefOpt,tpu,Primal,13,1e-06,1e-06,1e-06", "other_pipeline"),
        ("add_one,Jax,tpu,PreRev,13,1e-06,1e-06,1e-06", "unknown_mode"),
        ("add_one,Jax,cpu,Primal,13,1e-06,1e-06,1e-06", "unknown_device"),
        ("add_one,Jax,tpu,Primal,13,0,0,0", "latency_not_positive"),
    ],
)
def test_rows_are_dropped_by_rule(tmp_path, line, rule):
    data = read(tmp_path, line)
    assert data.steps.empty
    assert data.dropped == {rule: 1}


def test_a_program_that_needs_more_than_jax_is_flagged(tmp_path):
    row = read(tmp_path, "jaxmd20,Jax,cuda,Primal,13,1e-03,1e-03,1e-03").steps.iloc[0]
    assert (row["graph"], row["flag"]) == ("", "no_graph")


def test_one_run_tells_no_spread(tmp_path):
    row = read(tmp_path, "sum,Jax,tpu,Primal,1,1e-06,1e-06,1e-06").steps.iloc[0]
    assert row["spread_us"] != row["spread_us"]


def test_36_programs_have_a_graph_on_both_devices():
    index = load_bank(source="enzyme").index
    pairs = index[index["model"] != "value_and_grad"].groupby(["model", "mode"])["layout"].nunique()
    assert len(pairs) == 36
    assert (pairs == 2).all()


def test_the_host_is_waited_for_between_kernels_of_a_gpu_alone(tmp_path):
    lines = [f"add_one,Jax,{name},Forward,13,1e-06,1e-06,1e-06" for name in ("cuda", "tpu")]
    rows = read(tmp_path, *lines).steps
    samples = model_samples(rows, banks_of(rows), (), 1)
    assert samples is not None
    waits = dict(zip(samples.rows["device"], samples.host_us_M.tolist(), strict=True))
    assert waits == {"nvidia-a100-sxm-40gb": XLA_LAUNCH_US, "google-tpu-v6e": 0.0}  # two kernels


def test_nothing_of_it_there(tmp_path):
    with pytest.raises(LayoutNotFoundError, match="enzyme_jax_device_times"):
        next(enzyme.parts(tmp_path))
