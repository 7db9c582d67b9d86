"""Step tables: units, counts, plans and every rule, with numbers worked out by hand."""

from __future__ import annotations

import gzip
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest

from predictor.errors import DataError
from predictor.traces.files import LayoutNotFoundError
from predictor.traces.merge import merged
from predictor.traces.schema import Imported
from predictor.traces.sources import steps
from predictor.traces.sources.steps_maxtext import scales
from predictor.traces.sources.steps_megatron import parameters
from predictor.traces.sources.steps_table import device_and_count, number, plan, share

SAMPLE = Path(__file__).parent / "steps_sample"
"""A small layout of every family of tables, as published, without a row that is dropped."""
FILES = {p.relative_to(SAMPLE).as_posix(): p.read_text() for p in sorted(SAMPLE.rglob("*.*"))}
FOUNDRY = FILES["llm_foundry/mpt_training_throughput.csv"]
HESPAS = FILES["hespas_ispass2026/refs_llama3_train.csv"]
MAXTEXT = FILES["maxtext_tpu_tables/maxtext_perf.csv"]
MEGATRON = FILES["megatron_bridge/pretraining_throughput.csv"]
MLPERF = FILES["mlperf_training/mlperf_training_runs.csv"]
RECIPES = FILES["tpu_recipes/training_steps.csv"]
TITAN = FILES["torchtitan/benchmarks/llama3_h100.md"]
TPU_STEPS = FILES["tpu_mlperf_training/mlperf_tpu_steps_derived.csv"]


class StepTables:
    """Writes step tables below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, name: str, content: str) -> Path:
        """Write one file, gzipped where its name says so."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode()
        path.write_bytes(gzip.compress(data, mtime=0) if name.endswith(".gz") else data)
        return path

    def complete(self) -> Path:
        """Every table."""
        shutil.copytree(SAMPLE, self.root, dirs_exist_ok=True)
        return self.root


@pytest.fixture
def step_tables(tmp_path: Path) -> StepTables:
    """A writer of step tables below a temporary folder."""
    root = tmp_path / "tables"
    root.mkdir()
    return StepTables(root)


def read(path: Path) -> Imported:
    return merged(steps.parts(path))


@pytest.fixture
def rows(step_tables: StepTables) -> pd.DataFrame:
    return read(step_tables.complete()).steps


def of(rows: pd.DataFrame, folder: str) -> list[dict[str, object]]:
    return rows[rows["file"].str.startswith(f"{folder}/")].to_dict("records")  # type: ignore[return-value]


def dropped(step_tables: StepTables, name: str, content: str) -> Imported:
    step_tables.file(name, content)
    return read(step_tables.root)


def plan_devices(text: str) -> int:
    axes = dict(axis.split("=") for axis in text.split(","))
    return math.prod(int(n) for a, n in axes.items() if a not in ("ep", "vp"))


class TestEveryTable:
    def test_seconds_become_microseconds_and_rows_are_named_by_file_and_line(self, rows):
        first = of(rows, "mlperf_training")[0]
        assert first["row_id"] == "steps:mlperf_training/mlperf_training_runs.csv:0"
        assert first["latency_us"] == 56_000
        assert (rows["mode"] == "train").all()
        assert (rows["graph"] == "").all()

    def test_plans_multiply_to_the_devices(self, rows):
        planned = rows[rows["plan"] != ""]
        assert len(planned) >= 15
        for text, devices in zip(planned["plan"], planned["devices"], strict=True):
            assert plan_devices(text) == devices, text

    def test_gzipped_files_give_the_row_ids_of_plain_ones(self, step_tables, rows):
        step_tables.file("zipped/tpu_recipes/training_steps.csv.gz", RECIPES)
        ids = [r["row_id"] for r in of(rows, "tpu_recipes")]
        assert ids[0] == "steps:tpu_recipes/training_steps.csv:0"
        assert read(step_tables.root / "zipped").steps["row_id"].tolist() == ids

    @pytest.mark.parametrize("name", sorted(n for n in FILES if "configs" not in n))
    def test_one_file_gives_its_rows(self, step_tables, rows, name):
        if name.endswith(("microbench.csv", "mlperf_tpu_runs.csv")):
            with pytest.raises(LayoutNotFoundError):
                read(step_tables.root / name)
            return
        own = read(step_tables.root / name).steps
        expected = rows[rows["file"] == name].reset_index(drop=True)
        pd.testing.assert_frame_equal(own, expected)

    @pytest.mark.parametrize("folder", steps.FOLDERS)
    def test_one_folder_gives_its_rows(self, step_tables, rows, folder):
        own = read(step_tables.root / folder).steps
        expected = rows[rows["file"].str.startswith(f"{folder}/")].reset_index(drop=True)
        pd.testing.assert_frame_equal(own, expected)

    def test_files_that_give_no_steps_are_left_out_with_a_reason(self, step_tables):
        data = read(step_tables.complete())
        assert "steps" in data.left_out["tpu_recipes/microbench.csv"]

    def test_unknown_devices_are_dropped_and_named(self, step_tables):
        content = FOUNDRY.replace("a100_80gb", "abacus").replace("a100_40gb", "slide-rule")
        data = dropped(step_tables, "llm_foundry/mpt_training_throughput.csv", content)
        assert data.dropped == {"unknown_device": 2}
        assert [r["value"] for r in data.rejects] == ["abacus", "slide-rule"]

    def test_a_missing_column_is_an_error(self, step_tables):
        step_tables.file("tpu_recipes/training_steps.csv", "chip,chips\nv6e,8\n")
        with pytest.raises(DataError, match="source_file"):
            read(step_tables.root)


class TestMlperf:
    def test_a_run_with_its_config(self, rows):
        run = of(rows, "mlperf_training")[0]
        assert (run["device"], run["devices"], run["batch"]) == ("nvidia-h100-sxm-80gb", 8, 3200)
        assert (run["plan"], run["micro_batch"], run["size"]) == ("dp=8", 400, 224)
        assert (run["measure"], run["flag"]) == ("throughput", "")

    def test_runs_of_one_submission_give_repeats_and_spread(self, rows):
        run = of(rows, "mlperf_training")[0]
        assert run["repeats"] == 2
        assert run["spread_us"] == pytest.approx(1000 * math.sqrt(2))  # of 56 and 58 ms

    def test_model_parallel_axes_from_the_name_of_the_config(self, rows):
        run = of(rows, "mlperf_training")[2]  # 64 devices: 4 x 1 x 2 a replica
        assert run["plan"] == "dp=8,tp=4,pp=1,cp=2"
        assert (run["micro_batch"], run["seq"], run["dtype"]) == (1, 8192, "fp8")
        assert run["flag"] == ""  # 141 s x 8 / 2.94 s = 384 samples between evaluations

    def test_runs_without_config_and_times_from_epochs_are_kept_and_flagged(self, rows):
        run = of(rows, "mlperf_training")[3]
        assert run["flag"] == "config_unknown+derived_from_epoch"
        assert run["plan"] == ""

    def test_samples_counted_a_device_are_flagged(self, rows):
        run = of(rows, "mlperf_training")[4]  # 275 s x 64 / 1.55 s = 11,355 samples for 384
        assert run["flag"] == "config_unknown+inconsistent"

    def test_runs_without_step_time_are_dropped(self, step_tables):
        name = "mlperf_training/mlperf_training_runs.csv"
        data = dropped(step_tables, name, MLPERF.replace("0.058,gbs/logged throughput", ","))
        assert data.dropped == {"no_step_time": 1}
        assert len(data.steps) == 4
        assert data.rejects[0]["row"] == 1


class TestMegatron:
    def test_step_time_and_plan(self, rows):
        first, second = of(rows, "megatron_bridge")
        assert first["latency_us"] == pytest.approx(256 * 8192 / (1600 * 64) * 1e6)
        assert first["plan"] == "dp=2,tp=4,pp=8,cp=1,vp=5"
        assert (first["dtype"], second["dtype"]) == ("fp8", "bf16")
        assert (second["plan"], second["latency_us"]) == ("fsdp=8,tp=1,pp=1,cp=1,ep=1", 8e6)

    def test_tokens_that_belie_the_flops_are_dropped(self, step_tables):
        head, first, _ = MEGATRON.splitlines()
        moe = first.replace("LLAMA3_70B", "Qwen3_30B_a3B")
        half = moe.replace("1600,720", "2500,115")  # 46 GFLOP a token, for 6 x 3e9 = 18
        sound = moe.replace("1600,720", "5000,115")  # 23
        name = "megatron_bridge/pretraining_throughput.csv"
        data = dropped(step_tables, name, "\n".join([head, half, sound, first]))
        assert data.dropped == {"tokens_and_flops_disagree": 1}
        assert data.rejects[0]["row"] == 0
        assert len(data.steps) == 2

    def test_models_whose_name_tells_no_active_count_go_by_the_majority(self, step_tables):
        head, first, _ = MEGATRON.splitlines()
        rows = [first.replace("LLAMA3_70B", "DeepSeek_V3").replace("1600,720", f"1000,{t}")
                for t in (250, 251, 500)]  # fmt: skip
        name = "megatron_bridge/pretraining_throughput.csv"
        data = dropped(step_tables, name, "\n".join([head, *rows]))
        assert data.dropped == {"tokens_and_flops_disagree": 1}
        assert data.rejects[0]["row"] == 2

    def test_rows_without_rate_are_dropped(self, step_tables):
        name = "megatron_bridge/pretraining_throughput.csv"
        data = dropped(step_tables, name, MEGATRON.replace("1600,720", ",720"))
        assert data.dropped == {"no_step_time": 1}

    @pytest.mark.parametrize(
        ("name", "expected"),
        [("LLAMA3.1_405B", 405e9), ("Qwen3_235B_a22B", 22e9), ("GPT OSS 120B", 120e9), ("V3", 0)],
    )
    def test_parameters_of_a_name(self, name, expected):
        assert parameters(name) == expected


class TestTorchtitan:
    def test_captions_and_cells_give_the_configuration(self, rows):
        eager, compiled, long = of(rows, "torchtitan")[4:7]
        assert eager["device"] == "nvidia-h100-sxm-96gb-hbm2e"
        assert (eager["execution"], eager["dtype"], eager["recompute"]) == (
            "eager", "bf16", "selective",
        )  # fmt: skip
        assert (compiled["execution"], compiled["dtype"]) == ("compiled", "fp8")
        assert (eager["plan"], eager["batch"], eager["power_limit_w"]) == ("fsdp=8", 16, 500)
        assert eager["framework_version"] == "1963fc8"
        assert eager["latency_us"] == 16 * 8192 / (4096 * 8) * 1e6
        assert long["plan"] == "fsdp=4,tp=8,pp=8,cp=2"  # 512 / (8 x 8 x 2) = 4 ranks
        assert (long["batch"], long["seq"]) == (32, 65536)
        assert long["latency_us"] == 32 * 65536 / (64 * 512) * 1e6
        assert math.isnan(float(str(long["micro_batch"])))  # a pipeline cuts the local batch

    def test_an_assumed_sequence_is_flagged(self, rows):
        flags = [r["flag"] for r in of(rows, "torchtitan")[4:7]]
        assert flags == ["seq_assumed", "seq_assumed", ""]

    def test_prose_gives_what_no_caption_says(self, rows):
        run = of(rows, "torchtitan")[7]
        assert (run["device"], run["devices"]) == ("nvidia-h200-sxm-141gb", 32)  # 4 nodes of 8
        assert (run["model"], run["dtype"], run["execution"]) == ("llama-3.1-8b", "fp8", "compiled")
        assert run["latency_us"] == 64 * 8192 / (8192 * 32) * 1e6

    def test_each_throughput_column_is_a_row(self, rows):
        runs = of(rows, "torchtitan")[:4]
        assert [r["latency_us"] for r in runs] == [32e6, 16e6, 8e6, 4e6]  # 512 x 8192 / (x 256)
        assert [r["dtype"] for r in runs] == ["bf16", "bf16", "fp8", "fp8"]
        assert {r["plan"] for r in runs} == {"fsdp=32,tp=8"}
        assert {r["recompute"] for r in runs} == {"full"}

    def test_rows_without_throughput_or_batch_are_dropped(self, step_tables):
        content = TITAN.replace("4,096", "n/a").replace("Local batch size 8. ", "")
        data = dropped(step_tables, "torchtitan/benchmarks/a.md", content)
        assert data.dropped == {"no_step_time": 2}
        assert len(data.steps) == 1


class TestLlmFoundry:
    def test_tokens_not_truncated_sequences_give_the_step(self, rows):
        slow, fast = of(rows, "llm_foundry")
        assert (slow["latency_us"], fast["latency_us"]) == (336e6, 0.5e6)
        assert (slow["dtype"], fast["dtype"]) == ("amp-bf16", "bf16")
        assert (slow["recompute"], fast["recompute"]) == ("full", "none")
        assert (slow["plan"], slow["batch"], slow["micro_batch"]) == ("fsdp=8", 168, 1)
        assert fast["device"] == "nvidia-a100-sxm-40gb"

    def test_rows_without_tokens_are_dropped_and_unknown_precision_is_flagged(self, step_tables):
        content = FOUNDRY.replace(",0,4096,512,", ",0,0,0,").replace(",bf16,", ",posit,")
        data = dropped(step_tables, "llm_foundry/mpt_training_throughput.csv", content)
        assert data.dropped == {"no_step_time": 1}
        assert data.steps["flag"].tolist() == ["config_unknown"]


class TestHespas:
    def test_rounding_is_the_spread_and_flags_short_steps(self, rows):
        flags = {(r["device"], r["model"]): r["flag"] for r in of(rows, "hespas_ispass2026")}
        assert flags["nvidia-a100-sxm-40gb", "llama3-100m"] == ""  # 5 of 90 ms
        assert flags["nvidia-h100-sxm-80gb", "llama3-100m"] == "rounded"  # 5 of 40 ms
        assert {r["spread_us"] for r in of(rows, "hespas_ispass2026")} == {5000}

    def test_systems_count_devices(self, rows):
        found = {r["device"]: r for r in of(rows, "hespas_ispass2026")}
        assert found["nvidia-h100-sxm-80gb"]["devices"] == 4
        assert found["google-tpu-v3-core"]["devices"] == 8
        assert found["google-tpu-v3-core"]["flag"] == "config_unknown"

    def test_llamas_are_known_and_resnets_are_not(self, rows):
        llama, _, resnet, _ = of(rows, "hespas_ispass2026")
        assert (llama["batch"], llama["seq"], llama["plan"]) == (4, 4096, "fsdp=4")
        assert (resnet["model"], resnet["flag"]) == ("resnet50", "config_unknown")
        assert math.isnan(float(str(resnet["batch"])))

    def test_rows_without_time_are_dropped(self, step_tables):
        name = "hespas_ispass2026/refs_llama3_train.csv"
        data = dropped(step_tables, name, HESPAS.replace("0.09", ""))
        assert data.dropped == {"no_step_time": 1}


class TestMaxtext:
    def test_the_step_follows_from_the_script(self, rows):
        run = of(rows, "maxtext_tpu_tables")[0]
        # scale 32: embedding 8192, 64 heads, MLP 28672, 32 layers: 31.40e9 matrix weights
        flops_a_token = 6 * (32 * 8192 * (3 * 28672 + 4 * 64 * 128) + 8192 * 32000)
        flops_a_token += 12 * 32 * 64 * 128 * 2048
        assert flops_a_token == 194_846_392_320
        assert run["latency_us"] == pytest.approx(flops_a_token * 6 * 2048 / 319e12 * 1e6)
        assert (run["batch"], run["plan"]) == (768, "dp=2,fsdp=16,tp=4")
        assert (run["devices"], run["recompute"]) == (128, "minimal")
        assert run["flag"] == "derived+attention_uncertain"

    def test_a_plain_mlp_is_found_by_its_parameters(self, rows):
        run = of(rows, "maxtext_tpu_tables")[1]
        # 48 layers of 6144 x (2 x 24576 + 4 x 24 x 256), 13 x 2048 tokens a chip
        flops = 6 * (48 * 6144 * (2 * 24576 + 4 * 24 * 256) + 6144 * 32000)
        flops += 12 * 48 * 24 * 256 * 2048
        assert run["latency_us"] == pytest.approx(flops * 13 * 2048 / 156e12 * 1e6)

    def test_tokens_without_batch_give_the_time_of_a_sequence(self, rows):
        run = of(rows, "maxtext_tpu_tables")[2]
        assert (run["latency_us"], run["flag"]) == (4e6, "per_sequence")  # 4096 tokens at 1024/s
        assert math.isnan(float(str(run["batch"])))

    def test_rows_without_script_or_rate_are_dropped(self, step_tables):
        step_tables.complete()
        content = MAXTEXT.replace("MaxText 22B dense", "MaxText 23B dense")
        content = content.replace("0.43,1024.0", "0.43,")
        data = dropped(step_tables, "maxtext_tpu_tables/maxtext_perf.csv", content)
        assert data.dropped == {"no_step_time": 2}

    def test_scales_double_one_size_after_the_other(self):
        assert scales(1) == dict.fromkeys(scales(1), 1)
        assert scales(8) == dict.fromkeys(scales(8), 2)
        assert scales(16)["base_mlp_dim"] == scales(16)["base_num_query_heads"] == 4
        assert (scales(16)["base_emb_dim"], scales(16)["base_num_decoder_layers"]) == (2, 2)
        assert scales(32)["base_emb_dim"] == 4


class TestTpuRecipes:
    def test_a_sound_row(self, rows):
        run = of(rows, "tpu_recipes")[0]
        assert (run["model"], run["devices"], run["batch"]) == ("Llama3.1-405B", 512, 512)
        assert (run["plan"], run["latency_us"]) == ("fsdp=512", 54.8e6)
        assert (run["flag"], run["measure"], run["repeats"]) == ("", "wall", 1)

    def test_the_log_counts_chips_where_the_topology_disagrees(self, rows):
        run = of(rows, "tpu_recipes")[1]
        assert (run["devices"], run["model"]) == (512, "Scout")
        assert run["flag"] == "devices_from_log+config_unknown"

    def test_the_log_counts_samples_where_the_recipe_disagrees(self, rows):
        run = of(rows, "tpu_recipes")[2]
        assert run["batch"] == 2097152 / 4096
        assert run["flag"] == "batch_from_log"
        assert run["plan"] == "dp=1,fsdp=256"

    def test_slices_run_data_parallel(self, rows):
        assert of(rows, "tpu_recipes")[3]["plan"] == "dp=2,fsdp=256"

    def test_rows_without_time_are_dropped(self, step_tables):
        name = "tpu_recipes/training_steps.csv"
        data = dropped(step_tables, name, RECIPES.replace("8192,54.8,", "8192,,"))
        assert data.dropped == {"no_step_time": 1}


class TestTpuMlperf:
    def test_a_v3_chip_is_two_devices_and_a_v4_chip_one(self, rows):
        v3, v4 = of(rows, "tpu_mlperf_training")
        assert (v3["device"], v3["devices"]) == ("google-tpu-v3-core", 32)
        assert (v4["device"], v4["devices"]) == ("google-tpu-v4", 8)

    def test_runs_give_the_spread(self, rows):
        v3, v4 = of(rows, "tpu_mlperf_training")
        assert v3["repeats"] == 2
        assert v3["spread_us"] == pytest.approx(math.sqrt(2) / 1250 * 1e6)  # of 159 and 161 s
        assert math.isnan(float(str(v4["spread_us"])))

    def test_evaluation_inside_is_flagged(self, rows):
        v3, v4 = of(rows, "tpu_mlperf_training")
        assert v3["flag"] == "config_unknown+includes_evaluation"
        assert v4["flag"] == "config_unknown"
        assert (v3["framework"], v3["framework_version"]) == ("tensorflow", "2.8.0")

    @pytest.mark.parametrize("usable", ["no", ""])
    def test_rows_that_are_not_usable_are_dropped(self, step_tables, usable):
        name = "tpu_mlperf_training/mlperf_tpu_steps_derived.csv"
        data = dropped(step_tables, name, TPU_STEPS.replace("0.2333,yes", f"0.2333,{usable}"))
        assert data.dropped == {"not_usable": 1}
        assert len(data.steps) == 1


def test_packages_count_as_the_devices_that_a_framework_sees():
    assert device_and_count("TPU v3", "tpu_mlperf_training") == ("google-tpu-v3-core", 2)
    assert device_and_count("amd-mi250-package", "mlperf_training") == ("amd-mi250-gcd", 2)
    assert device_and_count("NVIDIA L40S", "mlperf_training") == ("nvidia-l40s", 1)
    assert device_and_count("abacus", "mlperf_training") is None


def test_numbers_plans_and_shares():
    assert number("3,890") == 3890
    assert all(math.isnan(number(v)) for v in ("", "n/a", None, True, "inf"))
    assert plan(dp=8, tp=math.nan, pp=None, cp=2) == "dp=8,cp=2"
    assert share(64, 4, 8) == 2
    assert share(64, 3) is None
    assert share(4, 8) is None
    assert share(64, 0) is None
