"""llm-foundry's MPT training tables: PyTorch FSDP on 8 to 128 A100s.

The step is the global batch in tokens over tokens/s: sequences/s is cut to whole numbers (0 on slow
rows). `no_step_time`: dropped, no tokens/s.
"""

from __future__ import annotations

from collections.abc import Mapping

from predictor.traces.sources.steps_table import StepTable, TableReader, number, plan, text

DTYPES: Mapping[str, str] = {
    "bf16": "bf16", "amp_bf16": "amp-bf16", "fp16": "fp16", "amp_fp16": "amp-fp16",
    "fp32": "fp32", "amp_fp8": "fp8",
}  # fmt: skip
RECOMPUTE: Mapping[str, str] = {"True": "full", "False": "none"}
AXES: Mapping[str, str] = {"FULL_SHARD": "fsdp", "SHARD_GRAD_OP": "fsdp", "NO_SHARD": "dp"}
_COLUMNS = (
    "Model", "SeqLen (T)", "# GPUs", "GPU", "MicroBatchSize", "GlobalBatchSize",
    "Throughput (T/s)", "GlobalBatchSize (T)", "Precision", "Sharding Strategy",
    "Activation Checkpointing",
)  # fmt: skip


def read(table: TableReader) -> None:
    """Add the rows."""
    for row in table.csv("mpt_training_throughput", _COLUMNS):
        rate, tokens = number(row["Throughput (T/s)"]), number(row["GlobalBatchSize (T)"])
        if not rate > 0 or not tokens > 0:
            table.refuse(row, "Throughput (T/s)", row["Throughput (T/s)"], "no_step_time")
            continue
        devices = number(row["# GPUs"])
        axis = AXES.get(text(row["Sharding Strategy"]))
        dtype = DTYPES.get(text(row["Precision"]), "")
        table.add(
            row, text(row["GPU"]), devices, model=f"mpt-{text(row['Model'])}",
            batch=number(row["GlobalBatchSize"]), seq=number(row["SeqLen (T)"]),
            micro_batch=number(row["MicroBatchSize"]), dtype=dtype,
            plan=plan(**{axis: devices}) if axis else "",
            recompute=RECOMPUTE.get(str(row["Activation Checkpointing"]), ""),
            framework="pytorch", library="llm-foundry", measure="throughput",
            latency_us=tokens / rate * 1e6,
            flags=("" if axis and dtype else "config_unknown",),
        )  # fmt: skip


TABLE = StepTable(
    folder="llm_foundry", licence="Apache-2.0", files=("mpt_training_throughput",), read=read,
    left_out={"scripts/**/*.md": "the tables that the CSV file transcribes"},
)  # fmt: skip
