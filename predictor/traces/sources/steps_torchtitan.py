"""torchtitan's benchmark notes: Llama 3.1 pretraining with 1 to 4 parallel axes, from Markdown.

One row a published throughput (tokens/s of a GPU, one logged iteration). The facts of a row stand
in its cells, in the caption above its table and in the prose of the file, and are looked for in
that order. Step time = local batch x data-parallel ranks x sequence / (tokens/s x GPUs).

| rule | what happens |
|---|---|
| `no_step_time` | dropped: no throughput, or no batch or GPU count to make a step of it |
| `seq_assumed` | kept, flagged: the note gives no sequence length; torchtitan's Llama 3 training \
configs of these dates say 8,192 |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from predictor.traces.sources.steps_table import (
    Record,
    StepTable,
    TableReader,
    number,
    plan,
    share,
)

CONFIG_SEQ = 8192
_RATE = re.compile(r"TPS/GPU|tokens/sec$", re.IGNORECASE)
_FACTS: Mapping[str, re.Pattern[str]] = {
    "size": re.compile(r"Llama ?3(?:\.1)? (\d+B)", re.IGNORECASE),
    "gpus": re.compile(r"\b(\d[\d,]*) (?:GPUs|[HABM]\d+\w*s)\b"),
    "local": re.compile(r"local[ _]batch[ _]size[ =](\d+)", re.IGNORECASE),
    "fsdp": re.compile(r"FSDP[ =]?(\d+)"),
    "tp": re.compile(r"\bTP[ =]?(\d+)"),
    "pp": re.compile(r"\bPP[ =]?(\d+)"),
    "cp": re.compile(r"\bCP[ =]?(\d+)"),
    "recompute": re.compile(r"(selective|full) activation|(?:per op )?(S|full )AC\b", re.I),
}  # fmt: skip
_NODES = "NUM_NODES"
_NODE_GPUS = re.compile(r"(\d+) NVIDIA \w+ GPUs")
_DEVICE = re.compile(r"NVIDIA (\w+) GPU")
_POWER = re.compile(r"(\d+)W power limit")
_TORCH = re.compile(r"^\| torch \| \[([^\]]+)\]", re.MULTILINE)
_COMPILED = re.compile(r"torch\.compile|training\.compile")
_FP8 = re.compile(r"float8", re.IGNORECASE)


def read(table: TableReader) -> None:
    """Add the rows of every note."""
    for row in table.markdown("benchmarks/*.md", parse):
        rate, devices = number(row["rate"]), number(row["gpus"])
        axes = {a: number(row[a]) for a in ("tp", "pp", "cp")}
        known = [n for n in axes.values() if n == n]
        parallel = share(devices, *known) if devices > 0 else None
        batch = number(row["local"]) * (parallel if parallel is not None else float("nan"))
        seq = number(row["seq"])
        assumed = not seq > 0
        seq = CONFIG_SEQ if assumed else seq
        if not rate > 0 or not batch > 0:
            table.refuse(row, "TPS/GPU", row["rate"], "no_step_time")
            continue
        table.add(
            row, str(row["device"]), devices, model=f"llama-3.1-{str(row['size']).lower()}",
            batch=batch, seq=seq, micro_batch=_micro_batch(number(row["local"]), axes),
            dtype="fp8" if row["fp8"] else "bf16",
            execution="compiled" if row["compiled"] else "eager",
            plan=plan(fsdp=parallel, **axes), recompute=row["recompute"], framework="pytorch",
            framework_version=row["torch"], library="torchtitan", measure="throughput", repeats=1,
            power_limit_w=number(row["power"]), latency_us=batch * seq / (rate * devices) * 1e6,
            flags=("seq_assumed" if assumed else "",),
        )  # fmt: skip


def _micro_batch(local: float, axes: Mapping[str, float]) -> float:
    """Samples of one pass; unknown where a pipeline cuts the local batch."""
    return float("nan") if axes["pp"] > 1 else local


def parse(content: str) -> list[Record]:
    """Facts of every throughput cell of a note."""
    rows: list[Record] = []
    for caption, header, cells in tables(content):
        for column, title in enumerate(header):
            if _RATE.search(title):
                rows.append(_facts(content, caption, header, cells, column))
    return rows


def tables(content: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Caption, header and cells of every row of every table.

    The caption is the last heading or bold line above a table.
    """
    caption, header = "", list[str]()
    for line in content.splitlines():
        if line.startswith(("**", "#")):
            caption, header = line, []
        elif not line.lstrip().startswith("|"):
            header = []
        else:
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if not header:
                header = cells
            elif not all(re.fullmatch(r":?-+:?", c) for c in cells):
                yield caption, header, cells


def _facts(
    content: str, caption: str, header: Sequence[str], cells: Sequence[str], column: int
) -> Record:
    named = dict(zip(header, cells, strict=False))
    own = " ".join([caption, header[column], *cells[:1]])
    # what a caption says of its table holds for all its rows; prose only where captions are silent
    several = "Table" in caption or "####" in caption
    prose = "" if several else content
    found: dict[str, object] = {
        name: next((m[1] or m[2] for part in (cells[0], caption, prose)
                    if (m := pattern.search(part))), "") or ""
        for name, pattern in _FACTS.items()
    }  # fmt: skip
    gpus = _NODE_GPUS.search(content)
    if _NODES in named and gpus:
        found["gpus"] = number(named[_NODES]) * float(gpus[1])
    recompute = {"s": "selective", "full ": "full"}.get(
        str(found["recompute"]).lower(), str(found["recompute"]).lower()
    )
    device, power, torch = (p.search(content) for p in (_DEVICE, _POWER, _TORCH))
    return {
        **found, "rate": cells[column] if column < len(cells) else "", "recompute": recompute,
        "seq": named.get("Sequence Length", ""),
        "fp8": bool(_FP8.search(own) or _FP8.search(prose)),
        "compiled": bool(_COMPILED.search(own) or _COMPILED.search(prose)),
        "device": device[1] if device else "", "power": power[1] if power else "",
        "torch": torch[1] if torch else "",
    }  # fmt: skip


TABLE = StepTable(
    folder="torchtitan", licence="BSD-3-Clause", files=("benchmarks/*.md",), read=read
)
