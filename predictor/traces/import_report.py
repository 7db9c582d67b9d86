"""`ImportReport`: what an import kept, flagged, dropped and left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from predictor.traces.files import SourceFile
from predictor.traces.schema import SCHEMA_VERSION, Imported

_NAMES: Mapping[str, str] = {
    "kernels": "kernel rows", "steps": "step rows", "ops": "rows of ops timed inside steps",
    "graphs": "op graphs", "graph_kernels": "kernels in op graphs",
    "graph_edges": "edges in op graphs", "peers": "published predictions (never labels)",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """Counts of one import."""

    source: str
    out: Path
    """Folder written."""
    rows: Mapping[str, int]
    """Rows kept by table; graphs, their kernels and edges too."""
    devices: tuple[str, ...]
    """Devices that a kept row was measured on."""
    flagged: Mapping[str, Mapping[str, int]]
    """Rows kept with a flag, by table and flag: not for every use, the flag says why."""
    dropped: Mapping[str, int]
    """Rows refused, by rule."""
    files_read: int
    left_out: Mapping[str, int]
    """Files of the layout that were not read, by reason."""
    schema_version: int = SCHEMA_VERSION

    @classmethod
    def of(cls, data: Imported, out: Path) -> ImportReport:
        """Count `data`, which is written to `out`."""
        graphs = data.graphs.values()
        flagged = {}
        for table in ("kernels", "steps", "ops"):
            counts = getattr(data, table)["flag"].value_counts().sort_index()
            flagged[table] = {str(f): int(n) for f, n in counts.items() if f}
        left_out: dict[str, int] = {}
        for reason in data.left_out.values():
            left_out[reason] = left_out.get(reason, 0) + 1
        return cls(
            source=data.source,
            out=out,
            rows={
                "kernels": len(data.kernels), "steps": len(data.steps), "ops": len(data.ops),
                "graphs": len(data.graphs), "graph_kernels": sum(len(g.table) for g in graphs),
                "graph_edges": sum(g.edge_index.shape[1] for g in graphs),
                "peers": len(data.peers),
            },
            devices=tuple(sorted({*data.kernels["device"], *data.steps["device"]})),
            flagged={table: flags for table, flags in flagged.items() if flags},
            dropped=dict(sorted(data.dropped.items())),
            files_read=len(data.files),
            left_out=left_out,
        )  # fmt: skip

    def to_json(
        self, *, files: Mapping[str, SourceFile], left_out: Mapping[str, str]
    ) -> dict[str, object]:
        """The report file: the counts, and every file read and left out."""
        return {
            "schema_version": self.schema_version, "source": self.source,
            "rows": dict(self.rows), "devices": list(self.devices),
            "flagged": {table: dict(flags) for table, flags in self.flagged.items()},
            "dropped": dict(self.dropped), "left_out": dict(left_out),
            "files": [asdict(files[path]) for path in sorted(files)],
        }  # fmt: skip

    def __str__(self) -> str:
        """Lines for a reader, one a count."""
        lines = [f"{self.source}: files read {self.files_read:,}, devices {len(self.devices)}"]
        shown = [key for key in _NAMES if self.rows[key] or key in ("kernels", "steps")]
        lines += [f"  {self.rows[key]:>9,}  {_NAMES[key]}" for key in shown]
        for table, flags in self.flagged.items():
            counts = ", ".join(f"{n:,} {flag}" for flag, n in flags.items())
            lines.append(f"kept with a flag, {table}: {counts}")
        dropped = ", ".join(f"{n:,} {rule}" for rule, n in self.dropped.items())
        lines.append(f"dropped: {dropped or 'none'}")
        for reason, n in self.left_out.items():
            lines.append(f"files left out: {n:,} ({reason})")
        lines.append(f"wrote {self.out}")
        return "\n".join(lines)
