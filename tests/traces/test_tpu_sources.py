"""TPU sources: which run of a kernel is its row, its work from HLO text, fits at stated sizes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from predictor.errors import DataError
from predictor.lower.xla_backends import tpu
from predictor.traces.files import LayoutNotFoundError
from predictor.traces.hlo_kernels import kernel_of_module
from predictor.traces.hlo_text import parse_hlo
from predictor.traces.merge import merged
from predictor.traces.schema import Imported
from predictor.traces.sources import scalesim, tpugraphs, tpurecipes

HERE = Path(__file__).parent


def read(parts, sample: str) -> Imported:
    return merged(parts(HERE / sample))


def with_lines(folder: Path, sample: str, table: str, *lines: str) -> Path:
    """A copy of a sample with further lines in one of its tables."""
    root = Path(shutil.copytree(HERE / sample, folder / "layout"))
    path = root / table
    path.write_text(path.read_text(encoding="utf-8") + "\n".join(lines) + "\n", encoding="utf-8")
    return root


def hlo(name: str) -> str:
    folder = HERE / "tpugraphs_sample" / "hlo"
    return (folder / f"{name}.hlo.txt").read_text(encoding="utf-8")


class TestTpuGraphs:
    def test_a_kernel_is_its_run_under_the_compilers_own_tiles(self, tmp_path):
        folder = with_lines(
            tmp_path, "tpugraphs_sample", "tile_runs.csv",
            "0,11,1,0,0,,2 2,,,18000,36000", "0,11,2,0,1,,4 2,,,,", "3,14,0,1,0,,1 1,,,7000,14000",
        )  # fmt: skip
        with (folder / "layout_runs.csv").open("a") as table:
            table.write('1,0,0,810000000,810000000,2,"[]"\n')
        data = merged(tpugraphs.parts(folder))
        assert data.kernels["latency_us"].tolist() == [20.0, 5.0, 9.0]
        assert set(data.kernels["device"]) == {"google-tpu-v3-core"}
        assert data.dropped == {
            "failed": 1, "tile_not_default": 1, "layout_not_default": 1, "no_hlo": 1,
        }  # fmt: skip

    def test_the_program_is_one_row_with_the_graph_of_the_library(self):
        step = read(tpugraphs.parts, "tpugraphs_sample").steps.iloc[0]
        assert (step["latency_us"], step["model"], step["mode"]) == (800_000.0, "unet3d", "train")
        assert step["graph"] == tpugraphs.graph_of_program() != ""

    def test_one_table_alone_is_read(self, tmp_path):
        folder = HERE / "tpugraphs_sample"
        shutil.copy(folder / "layout_runs.csv", tmp_path / "layout_runs.csv")
        data = merged(tpugraphs.parts(tmp_path))
        assert len(data.kernels) == 0 and len(data.steps) == 1

    def test_nothing_there_is_said(self, tmp_path):
        with pytest.raises(LayoutNotFoundError, match=r"tile_runs\.csv"):
            list(tpugraphs.parts(tmp_path))


class TestHloKernels:
    def test_a_convolution_fills_its_channels_at_each_place_of_the_window(self):
        kernel = kernel_of_module(parse_hlo(hlo("op_00"), "op"), tpu(128), "op")
        assert (kernel.op, kernel.dtype) == ("conv", "bf16")
        assert (kernel.dims["c_in"], kernel.dims["c_out"], kernel.dims["kh"]) == (192, 256, 3)
        products = 2 * 8 * 16 * 16 * 9 * 192 * 256
        beside = 2 * 8 * 16 * 16 * 256  # the bias and the conversion
        assert kernel.flops == products * 256 / 192 + beside
        # 192 channels lie in 256 lanes
        assert kernel.read_bytes == 8 * 16 * 16 * 256 * 2 + 9 * 192 * 256 * 4 + 256 * 4
        assert kernel.write_bytes == 8 * 16 * 16 * 256 * 2

    def test_a_copy_to_another_order_is_a_transpose(self):
        kernel = kernel_of_module(parse_hlo(hlo("op_01"), "op"), tpu(128), "op")
        assert (kernel.op, kernel.flops) == ("transpose", 0.0)
        assert kernel.read_bytes == kernel.write_bytes == 32 * 5 * 8 * 256 * 4

    def test_a_convolution_without_a_window_is_a_product(self):
        kernel = kernel_of_module(parse_hlo(hlo("op_02"), "op"), tpu(128), "op")
        assert (kernel.op, kernel.dtype) == ("matmul", "bf16")
        assert kernel.dims == {"batch": 1, "m": 32, "n": 100, "k": 512}
        # the kernel's 100 columns lie in sublanes (8), those of the result in lanes (128)
        assert kernel.read_bytes == 512 * 104 * 4 + 32 * 512 * 4
        assert kernel.write_bytes == 256 * 4 + 32 * 128 * 4

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            ("HloModule nothing", "no entry"),
            ("ENTRY %a () -> f32[] {\n  nonsense\n}", "line 2: no HLO instruction"),
            ("ENTRY %a () -> f32[] {\n  ROOT %c = f33[2]{0} constant(1)\n}", "no shape"),
        ],
    )
    def test_what_is_no_hlo_is_refused(self, text, match):
        with pytest.raises(DataError, match=match):
            parse_hlo(text, "file")

    def test_an_unknown_operation_is_refused_by_name(self):
        text = hlo("op_01").replace(" copy(%", " frobnicate(%")
        with pytest.raises(DataError, match="'frobnicate'"):
            kernel_of_module(parse_hlo(text, "file"), tpu(128), "file")


class TestScaleSim:
    def test_lines_are_sampled_at_the_stated_sizes_and_flagged(self):
        rows = read(scalesim.parts, "scalesim_sample").kernels
        adds = rows[rows["op"] == "add"]
        assert adds["dim_numel"].tolist() == list(scalesim.SIZES)
        assert adds["latency_us"].tolist() == pytest.approx(
            [2e-5 * size + 1.0 for size in scalesim.SIZES]
        )
        assert rows["flag"].str.startswith("fit").all()
        assert set(rows["device"]) == {"google-tpu-v4"}

    def test_rows_without_a_line_or_shape_are_counted(self, tmp_path):
        folder = with_lines(
            tmp_path, "scalesim_sample", "linear_models_mit.csv",
            "linear_model_pooling_max_pooling_s1,size: int,0.000001 * size + 1.5",
            "linear_model_elementwise_cross_1d,size: int,0.000001 * size + 1.5",
            "linear_model_activation_relu_1d,size: int,size * size",
        )  # fmt: skip
        assert merged(scalesim.parts(folder)).dropped == {
            "no_line": 1, "shape_not_told": 1, "unknown_function": 1,
        }  # fmt: skip

    def test_a_product_follows_the_published_cycles(self):
        # 446 cycles through one tile, either way round
        assert scalesim.product_us(64, 64, 64) == pytest.approx(0.002762 * 446 + 0.059902)
        # (3 * 128 + 512 - 2) * 4 * 4
        assert scalesim.product_us(512, 512, 512) == pytest.approx(0.00036 * 14_304 + 0.780070)

    def test_lines_that_jump_are_told(self):
        assert not scalesim.jumps(64, 64, 64)
        assert scalesim.jumps(4096, 64, 64)  # 30 us where the line below says 2.4
        assert not scalesim.jumps(4096, 4096, 4096)
        rows = read(scalesim.parts, "scalesim_sample").kernels
        flag = rows.set_index("row_id")["flag"]
        assert flag["scalesim:gemm:4096x64x64"] == "fit+inconsistent"


class TestTpuRecipes:
    def test_device_traces_are_taken_before_host_timing(self, tmp_path):
        folder = with_lines(
            tmp_path, "tpurecipes_sample", "microbench.csv",
            "README.md,7,v6e-1,matmul,bf16,4096,4096,4096,210.0,,654.4,,host timing",
            "README.md,11,v99,hbm_copy,bf16,33554432,,,50.0,,,1342.2,device trace",
            "README.md,12,v6e-1,all_reduce,bf16,33554432,,,50.0,,,1342.2,device trace",
        )  # fmt: skip
        data = merged(tpurecipes.parts(folder))
        assert data.kernels["op"].tolist() == ["matmul", "copy"]
        assert data.kernels["latency_us"].tolist() == [180.0, 50.0]
        assert data.dropped == {"host_timing": 1, "unknown_device": 1, "unknown_op": 1}

    def test_work_and_traffic(self):
        product, copy = read(tpurecipes.parts, "tpurecipes_sample").kernels.to_dict("records")
        assert product["flops"] == 2 * 4096**3
        assert (copy["read_bytes"], copy["write_bytes"]) == (33_554_432, 33_554_432)
        assert copy["dim_numel"] == 16_777_216
