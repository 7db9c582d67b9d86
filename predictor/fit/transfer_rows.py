"""Rows of one device for a transfer report: samples for networks, facts for the baselines.

| column of a frame | holds |
|---|---|
| `row_id`, `device`, `dtype`, `measured_us` | of the row |
| `group` | model or shape: what must stay on one side of a draw |
| `key` | what another device must have measured to stand in for the row |
| `setting` | software setting, the release of the framework in it |
| `proxy_setting` | the same without what `key` tells |
| `units` | batch where devices ran other batches, else 1 |
| `flops` | of the whole row |

Legend: N rows, C kernels, F columns, G steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from predictor.calibrate.readings import Readings
from predictor.fit.coverage import Coverage
from predictor.fit.data import sampled_rows, usable_models, usable_steps
from predictor.fit.model_samples import ModelSamples, banks_of, model_samples
from predictor.fit.readings import kernel_readings, model_readings, step_readings
from predictor.fit.samples import KernelSamples, kernel_samples
from predictor.fit.step_samples import StepSamples, step_samples
from predictor.fit.transfer_suites import Kind, TransferSuite
from predictor.nn.fitted_roofline import CLASS_OF_TOKEN
from predictor.nn.kernel_model import KernelModel
from predictor.nn.learned import Entry
from predictor.traces.schema import Imported

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
MOST_ROWS = 2000
"""Kernel rows of a device, at most (those whose ids have the smallest hashes)."""
MOST_STEPS = 400
"""Steps of a device in one setting, at most."""
_PER_SHAPE = ("matmul", "linear")
"""Ops whose rows go together whatever their `m`: one weight at many batches."""
_SETTING = ("mode", "execution", "dtype", "layout", "framework_version")
_PROXY_SETTING = ("execution", "dtype", "layout", "framework_version", "library", "measure")
_KERNEL_SETTING = ("framework", "framework_version", "library", "execution", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRows:
    """Measured rows of one kind on one device."""

    device: str
    kind: Kind
    samples: KernelSamples | StepSamples | ModelSamples
    frame: pd.DataFrame
    x_NF: NDArray[np.float32]
    """What boosted trees read."""
    base_us_N: Floats
    """Sustained roofline, which they correct."""

    @property
    def log_us_N(self) -> Floats:
        """Log of the measured times."""
        return np.asarray(np.log(self.frame["measured_us"].to_numpy(dtype=float)))

    def readings(self, networks: KernelModel, learned: Collection[Entry] | None) -> Readings:
        """What networks predict of the rows; `learned` None lets them speak for every kind."""
        known = every_kind(self.samples.coverage) if learned is None else learned
        if isinstance(self.samples, KernelSamples):
            return kernel_readings(networks, self.samples, known)
        if isinstance(self.samples, ModelSamples):
            return model_readings(networks, self.samples, known)
        ops, steps = step_readings(networks, self.samples, known)
        if self.kind == "step":
            return steps
        assert ops is not None
        return ops


def every_kind(coverage: Coverage) -> set[Entry]:
    """Entries of all kinds that occur."""
    return {(kind.token, kind.dtype) for kind in coverage.kinds}


def proxy_rows(data: Imported, suite: TransferSuite, flags: Collection[str]) -> pd.DataFrame:
    """All measured rows of a suite's target kind that another device may stand in with."""
    if suite.target == "alone":
        return kernel_facts(_kernels(data, suite, "alone", flags))
    if suite.target == "step":
        return step_facts(data.steps[data.steps["flag"] == ""], suite)
    import pandas as pd

    parts = [_op_facts(data.ops, time) for time in ("forward_us", "backward_us")]
    return pd.concat(parts, ignore_index=True)


def device_rows(
    data: Imported,
    suite: TransferSuite,
    kind: Kind,
    device: str,
    *,
    flags: Collection[str],
    depth: int,
) -> DeviceRows | None:
    """Rows of one kind on a device, a sample of them; None when there are none.

    Args:
        data: all rows of the suite's source.
        suite: which rows.
        kind: of them.
        device: one with rows.
        flags: rows of these are left out.
        depth: message-passing layers that whole models must serve.
    """
    if kind == "alone":
        return _kernel_rows(_kernels(data, suite, kind, flags), device, kind)
    if kind == "inside" and len(data.kernels) and (data.kernels["context"] == "step").any():
        return _kernel_rows(_kernels(data, suite, kind, flags), device, kind)
    banked = usable_models(data, [device]) if kind == "step" else data.steps.iloc[:0]
    if len(banked):
        return _model_rows(banked, suite, device, depth)
    steps = usable_steps(data, [device])
    samples = step_samples(data, steps, (), tuple(flags)) if len(steps) else None
    if samples is None or (kind == "inside" and not len(samples.ops)):
        return None
    return _published_rows(data, samples, suite, device, kind)


def _kernels(
    data: Imported, suite: TransferSuite, kind: Kind, flags: Collection[str]
) -> pd.DataFrame:
    rows = data.kernels
    inside = rows["context"] == "step"
    keep = (inside if kind == "inside" else ~inside) & ~rows["flag"].isin(list(flags))
    for column, values in suite.only.items():
        keep &= rows[column].isin(values)
    return rows[keep]


def kernel_facts(rows: pd.DataFrame) -> pd.DataFrame:
    """The frame of kernel rows."""
    import pandas as pd

    dims = [c for c in rows.columns if c.startswith("dim_")]
    shape = rows[dims].copy()
    shape.loc[rows["op"].isin(_PER_SHAPE), "dim_m"] = -1
    inside = (rows["context"] == "step") & (rows["model"] != "")
    group = rows["op"] + ":" + _hashed(shape)
    key = _hashed(rows[["op", "phase", "dtype", "scheme", *dims]])
    setting = _joined(rows, _KERNEL_SETTING)
    return pd.DataFrame({
        "row_id": rows["row_id"], "device": rows["device"], "dtype": rows["dtype"],
        "measured_us": rows["latency_us"], "group": group.where(~inside, rows["model"]),
        "key": key, "setting": setting, "proxy_setting": setting, "units": 1.0,
        "flops": rows["flops"],
    }).reset_index(drop=True)  # fmt: skip


def step_facts(rows: pd.DataFrame, suite: TransferSuite) -> pd.DataFrame:
    """The frame of step rows, their FLOPs unknown."""
    import pandas as pd

    named = ["mode", "model", "size", "seq"] + ([] if suite.per_sample else ["batch"])
    return pd.DataFrame({
        "row_id": rows["row_id"], "device": rows["device"], "dtype": rows["dtype"],
        "measured_us": rows["latency_us"], "group": rows["model"],
        "key": _hashed(rows[named].fillna(-1.0)), "setting": _joined(rows, _SETTING),
        "proxy_setting": _joined(rows, _PROXY_SETTING),
        "units": rows["batch"].to_numpy(dtype=float) if suite.per_sample else 1.0,
        "flops": np.nan,
    }).reset_index(drop=True)  # fmt: skip


def _op_facts(ops: pd.DataFrame, time: str) -> pd.DataFrame:
    """The frame of published ops inside steps."""
    import pandas as pd

    measured = ops[ops[time] > 0]
    return pd.DataFrame({
        "row_id": measured["row_id"], "device": measured["device"], "dtype": "fp32",
        "measured_us": measured[time], "group": measured["model"],
        "key": _hashed(measured[["graph", "node"]].assign(phase=time.removesuffix("_us"))),
        "setting": "", "proxy_setting": "", "units": 1.0, "flops": np.nan,
    }).reset_index(drop=True)  # fmt: skip


def _hashed(rows: pd.DataFrame) -> pd.Series[str]:
    import pandas as pd

    return pd.util.hash_pandas_object(rows, index=False).astype(str)


def _joined(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series[str]:
    """The values of some columns in words, unknown ones left out."""
    import pandas as pd

    names = rows[list(columns)].drop_duplicates()
    text = [" ".join(v for v in map(str, values) if v) for values in names.to_numpy()]
    of = dict(zip(map(tuple, names.to_numpy().tolist()), text, strict=True))
    every = map(tuple, rows[list(columns)].to_numpy().tolist())
    return pd.Series([of[v] for v in every], index=rows.index, dtype=object)


def _kernel_rows(rows: pd.DataFrame, device: str, kind: Kind) -> DeviceRows | None:
    rows = sampled_rows(rows[rows["device"] == device], MOST_ROWS, ("device",))
    rows = rows.reset_index(drop=True)
    samples = kernel_samples(rows, (), Counter())
    if not len(samples.row_id):
        return None
    frame = kernel_facts(rows).iloc[samples.row_N].reset_index(drop=True)
    x = np.concatenate(
        [samples.x_NF.numpy(), samples.token_N.numpy()[:, None].astype(np.float32)], axis=1
    )
    base = samples.base_us_N.numpy().astype(np.float64)
    return DeviceRows(
        device=device, kind=kind, samples=samples, frame=frame, x_NF=x, base_us_N=base
    )


def newest(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each device, mode, execution, dtype and layout, the rows of the newest release."""
    by = [rows[c] for c in ("device", *_SETTING[:-1])]
    order = rows["framework_version"].map(_release)
    return rows[order == order.groupby(by, sort=False).transform("max")]


def _release(version: str) -> int:
    numbers = [int(part) for part in version.split(".")[:3] if part.isdigit()]
    return sum(n * 1000 ** (2 - i) for i, n in enumerate(numbers))


def _model_rows(
    rows: pd.DataFrame, suite: TransferSuite, device: str, depth: int
) -> DeviceRows | None:
    rows = newest(rows) if suite.newest else rows
    rows = sampled_rows(rows, MOST_STEPS, ("device", *_SETTING))
    samples = model_samples(rows, banks_of(rows), (), depth, Counter())
    if samples is None:
        return None
    n = len(samples)
    owner = np.repeat(np.arange(n), np.diff(samples.start_M.numpy()))
    count = samples.count_C.numpy().astype(np.float64)
    flops = np.bincount(owner, samples.flops_C.numpy() * count, minlength=n)
    x, base = step_inputs(
        samples.x_CF.numpy(), samples.token_C.numpy(), samples.base_us_C.numpy(), count, owner, n
    )
    frame = step_facts(samples.rows, suite).assign(flops=flops)
    return DeviceRows(
        device=device, kind="step", samples=samples, frame=frame, x_NF=x, base_us_N=base
    )


def _published_rows(
    data: Imported, samples: StepSamples, suite: TransferSuite, device: str, kind: Kind
) -> DeviceRows:
    """Rows of published op graphs: the steps, or the ops inside them."""
    per_kernel = np.concatenate([data.graphs[str(g)].table.flops for g in samples.steps["graph"]])
    x, token = samples.x_NF.numpy(), samples.token_N.numpy()
    base = samples.base_us_N.numpy()
    if kind == "step":
        owner, count = samples.graph_N.numpy(), samples.weight_N.numpy().astype(np.float64)
        frame = step_facts(samples.steps, suite)
        total = np.nansum([samples.forward_us_G.numpy(), samples.backward_us_G.numpy()], axis=0)
        frame = frame.assign(measured_us=total.astype(float))
    else:
        at = samples.kernel_K.numpy()
        owner, count = samples.label_K.numpy(), np.ones(len(at))
        x, token, base, per_kernel = x[at], token[at], base[at], per_kernel[at]
        frame = _label_facts(samples.ops)
    n = len(frame)
    flops = np.bincount(owner, per_kernel * count, minlength=n)
    inputs, total_base = step_inputs(x, token, base, count, owner, n)
    return DeviceRows(
        device=device, kind=kind, samples=samples, frame=frame.assign(flops=flops), x_NF=inputs,
        base_us_N=total_base,
    )  # fmt: skip


def _label_facts(ops: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    key = pd.Series("", index=ops.index)
    for phase in ops["phase"].unique():
        own = ops["phase"] == phase
        key[own] = _hashed(ops.loc[own, ["graph", "node"]].assign(phase=phase)).to_numpy()
    return pd.DataFrame({
        "row_id": ops["row_id"], "device": ops["device"], "dtype": "fp32",
        "measured_us": ops["measured_us"], "group": ops["model"], "key": key, "setting": "",
        "proxy_setting": "", "units": 1.0,
    })  # fmt: skip


def step_inputs(
    x_CF: NDArray[np.float32],
    token_C: NDArray[np.int64],
    base_us_C: NDArray[np.float32],
    count_C: Floats,
    owner_C: NDArray[np.int64],
    n: int,
) -> tuple[NDArray[np.float32], Floats]:
    """What boosted trees read of N steps, and their sustained rooflines.

    The mean over kernels of every column, weighted by time; the share of each op class; the
    logs of the roofline and of the number of kernels.
    """
    spent_C = base_us_C.astype(np.float64) * count_C
    base_N: Floats = np.bincount(owner_C, spent_C, minlength=n).astype(np.float64)
    share_C = (spent_C / base_N[owner_C]).astype(np.float32)
    mean_NF = np.stack([np.bincount(owner_C, column * share_C, n) for column in x_CF.T], axis=1)
    op_class = CLASS_OF_TOKEN.numpy()[token_C]
    classes = int(CLASS_OF_TOKEN.max()) + 1
    by_class = np.bincount(owner_C * classes + op_class, share_C, minlength=n * classes)
    kernels = np.bincount(owner_C, count_C, minlength=n)
    rest = np.stack([np.log(base_N), np.log(kernels)], axis=1)
    x = np.concatenate([mean_NF, by_class.reshape(n, classes), rest], axis=1)
    return x.astype(np.float32), base_N


def taken(rows: DeviceRows, index: NDArray[np.int64]) -> DeviceRows:
    """Frame and inputs of the rows at `index`; the samples stay whole."""
    return replace(
        rows, frame=rows.frame.iloc[index].reset_index(drop=True), x_NF=rows.x_NF[index],
        base_us_N=rows.base_us_N[index],
    )  # fmt: skip


def index_tensor(index: NDArray[np.int64]) -> torch.Tensor:
    """Rows of samples as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(index, dtype=np.int64))
