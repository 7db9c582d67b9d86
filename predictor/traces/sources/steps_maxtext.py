"""MaxText's performance tables: LLM training steps on TPU v4 to v6e.

The tables give TFLOP/s or tokens/s a chip, never a step time. Where the launch script of a dense
model is published, its FLOPs a step over TFLOP/s give the step. The tables' own count is followed:
6 FLOP a matrix weight and token (the output embedding is one, gathered embeddings are not) and 12
FLOP a token, position and attention channel, full and not causal.

| rule | what happens |
|---|---|
| `no_step_time` | dropped: no tokens/s, and no script from which the work of a step follows |
| `derived` | kept, flagged: the time follows from TFLOP/s and a script |
| `attention_uncertain` | kept, flagged: before July 2025 versions counted attention in full or by \
half; at 2,048 tokens that is at most 7% of the work |
| `per_sequence` | kept, flagged: tokens/s without a batch; the time of one sequence a chip |
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from predictor.traces.sources.steps_table import (
    Record,
    StepTable,
    TableReader,
    number,
    plan,
    share,
    text,
)

DEFAULT_SEQ = 2048
VOCAB = 32_000
BASE: Mapping[str, float] = {
    "base_emb_dim": 2048, "base_num_query_heads": 16, "base_num_kv_heads": 16,
    "base_mlp_dim": 7168, "base_num_decoder_layers": 16,
}  # fmt: skip
"""Sizes of a script that names none, before `global_parameter_scale`."""
SHAPES: tuple[tuple[int, int], ...] = ((3, 128), (2, 256))
"""Matrices of the MLP and head size, which scripts do not list: gated first, then plain."""
PARAMETERS_AGREE = 0.05
"""A shape is taken when its parameters are those of the model's name up to this fraction."""
_COLUMNS = (
    "chip", "chips", "slices", "model", "params", "precision", "seq_len", "tflops_per_chip",
    "tokens_per_s_per_chip",
)  # fmt: skip
_CONFIG_COLUMNS = (
    "source_file", "chip", "per_device_batch_size", "max_target_length", "remat_policy",
    "global_parameter_scale", "ici_fsdp_parallelism", "ici_tensor_parallelism", *BASE,
)  # fmt: skip
_DENSE = re.compile(r"MaxText (\d+)B dense")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a launch script makes one chip do in a step."""

    batch: float
    """Sequences a chip."""
    seq: float
    flops: float
    """FLOPs a chip, as the tables count them."""


def read(table: TableReader) -> None:
    """Add the rows."""
    configs = _configs(table.csv("maxtext_configs", _CONFIG_COLUMNS, aside=True))
    for row in table.csv("maxtext_perf", _COLUMNS):
        rate, seq = number(row["tokens_per_s_per_chip"]), number(row["seq_len"])
        dense = _DENSE.fullmatch(text(row["model"]))
        config = configs.get((text(row["chip"]), dense[1])) if dense else None
        work = work_of(config, float(dense[1]) * 1e9) if config and dense else None
        speed = number(row["tflops_per_chip"]) * 1e12
        if rate > 0 and seq > 0:
            _add(table, row, seq=seq, latency_us=seq / rate * 1e6, flags=("per_sequence",))
        elif work is not None and config is not None and speed > 0:
            _add(
                table, row, seq=work.seq, batch=work.batch * number(row["chips"]),
                latency_us=work.flops / speed * 1e6, plan=_plan(row, config),
                recompute=text(config["remat_policy"]),
                flags=("derived", "attention_uncertain"),
            )  # fmt: skip
        else:
            table.refuse(row, "step_time_s", "", "no_step_time")


def _add(table: TableReader, row: Record, **values: object) -> None:
    precision = text(row["precision"])
    table.add(
        row, text(row["chip"]), row["chips"], model=text(row["model"]),
        dtype=precision if precision in ("bf16", "fp8") else "", execution="xla",
        framework="jax", library="maxtext", measure="throughput", **values,
    )  # fmt: skip


def _configs(rows: Iterable[Record]) -> dict[tuple[str, str], Record]:
    """Scripts of dense models by chip and size, `v5p/32b.sh`."""
    found = {}
    for row in rows:
        size = re.search(r"/(\d+)b\.sh$", text(row["source_file"]))
        if size:
            found[text(row["chip"]), size[1]] = row
    return found


def scales(scale: float) -> dict[str, int]:
    """Factors of the base sizes: MaxText doubles MLP and heads, embedding, layers in turn."""
    cycles, rest = divmod(math.floor(math.log2(scale)), 3)
    wide = 2 ** (cycles + (rest > 0))
    return {
        "base_mlp_dim": wide, "base_num_query_heads": wide, "base_num_kv_heads": wide,
        "base_emb_dim": 2 ** (cycles + (rest > 1)), "base_num_decoder_layers": 2**cycles,
    }  # fmt: skip


def work_of(config: Record, parameters: float) -> Work | None:
    """Work of a chip in a step; None where no shape has the parameters of the model's name."""
    scale = number(config["global_parameter_scale"])
    factors = scales(scale) if scale >= 1 else dict.fromkeys(BASE, 1)
    size = {
        name: (number(config[name]) if number(config[name]) > 0 else base) * factors[name]
        for name, base in BASE.items()
    }
    embedding, layers = size["base_emb_dim"], size["base_num_decoder_layers"]
    batch, seq = number(config["per_device_batch_size"]), number(config["max_target_length"])
    seq = seq if seq > 0 else DEFAULT_SEQ
    for matrices, head_dim in SHAPES:
        heads = 2 * (size["base_num_query_heads"] + size["base_num_kv_heads"]) * head_dim
        weights = layers * embedding * (matrices * size["base_mlp_dim"] + heads)
        weights += embedding * VOCAB
        if abs(weights + embedding * VOCAB - parameters) <= PARAMETERS_AGREE * parameters:
            attention = 12 * layers * size["base_num_query_heads"] * head_dim * seq
            flops = (6 * weights + attention) * batch * seq
            return Work(batch=batch, seq=seq, flops=flops) if flops > 0 else None
    return None


def _plan(row: Record, config: Record) -> str:
    """Slices run data parallel; within one, what is not tensor parallel is FSDP."""
    chips, slices = number(row["chips"]), number(row["slices"])
    tensor = number(config["ici_tensor_parallelism"])
    tensor = tensor if tensor > 0 else 1.0
    sharded = share(chips, slices, tensor)
    return plan(dp=slices, fsdp=sharded, tp=tensor) if sharded is not None else ""


TABLE = StepTable(
    folder="maxtext_tpu_tables", licence="Apache-2.0", files=("maxtext_perf",),
    read=read,
)  # fmt: skip
