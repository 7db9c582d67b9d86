"""`ImportReport`: what an import kept, flagged, dropped and left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from predictor.traces.files import SourceFile
from predictor.traces.schema import SCHEMA_VERSION, Imported

_NAMES: Mapping[str, str] = {
    "kernels": "kernel rows", "steps": "step rows", "ops": "rows of ops timed inside steps",
    "graphs": "op graphs", "graph_kernels": "kernels in op graphs",
    "graph_edges": "edges in op graphs", "peers": "published predictions (never labels)",
}  # fmt: skip


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """Counts of one import, added up part by part."""

    source: str
    out: Path
    """Folder written."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows kept by table; graphs, their kernels and edges too."""
    by_device: Counter[str] = field(default_factory=Counter)
    """Kernel and step rows kept by device."""
    flagged: dict[str, Counter[str]] = field(default_factory=dict)
    """Rows kept with a flag, by table and flag: not for every use, the flag says why."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows refused, by rule."""
    rejects: list[dict[str, object]] = field(default_factory=list)
    """The first refused row of each file and rule."""
    files: dict[str, SourceFile] = field(default_factory=dict)
    """Files read."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Files of the layout that were not read, and why."""
    schema_version: int = SCHEMA_VERSION
    earlier: Mapping[str, Any] | None = None
    """Report of the import that stood in the folder before."""

    def add(self, part: Imported) -> None:
        """Count one part of the source."""
        graphs = part.graphs.values()
        self.rows.update({
            "kernels": len(part.kernels), "steps": len(part.steps), "ops": len(part.ops),
            "graphs": len(part.graphs), "graph_kernels": sum(len(g.table) for g in graphs),
            "graph_edges": sum(g.edge_index.shape[1] for g in graphs), "peers": len(part.peers),
        })  # fmt: skip
        for table in ("kernels", "steps"):
            counts = getattr(part, table)["device"].value_counts()
            self.by_device.update({str(d): int(n) for d, n in counts.items()})
        for table in ("kernels", "steps", "ops"):
            counts = getattr(part, table)["flag"].value_counts()
            found = {str(f): int(n) for f, n in counts.items() if f}
            if found:
                self.flagged.setdefault(table, Counter()).update(found)
        self.dropped.update(part.dropped)
        self.rejects.extend(part.rejects)
        self.files.update(part.files)
        self.left_out.update(part.left_out)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that a kept row was measured on."""
        return tuple(sorted(self.by_device))

    def to_json(self) -> dict[str, Any]:
        """The report file: the counts, and every file read and left out."""
        return {
            "schema_version": self.schema_version, "source": self.source,
            "rows": dict(self.rows), "devices": dict(sorted(self.by_device.items())),
            "flagged": {t: dict(sorted(f.items())) for t, f in self.flagged.items()},
            "dropped": dict(sorted(self.dropped.items())), "left_out": self.left_out,
            "files": [asdict(self.files[path]) for path in sorted(self.files)],
        }  # fmt: skip

    def __str__(self) -> str:
        """Lines for a reader, one a count."""
        lines = [f"{self.source}: files read {len(self.files):,}, devices {len(self.by_device)}"]
        shown = [key for key in _NAMES if self.rows[key] or key in ("kernels", "steps")]
        lines += [f"  {self.rows[key]:>9,}  {_NAMES[key]}" for key in shown]
        for table, flags in self.flagged.items():
            counts = ", ".join(f"{n:,} {flag}" for flag, n in sorted(flags.items()))
            lines.append(f"kept with a flag, {table}: {counts}")
        dropped = ", ".join(f"{n:,} {rule}" for rule, n in sorted(self.dropped.items()))
        lines.append(f"dropped: {dropped or 'none'}")
        reasons = Counter(self.left_out.values())
        lines += [f"files left out: {n:,} ({reason})" for reason, n in reasons.items()]
        lines += self._replaced()
        lines.append(f"wrote {self.out}")
        return "\n".join(lines)

    def _replaced(self) -> list[str]:
        """A line on an earlier import of other data, which is gone."""
        if self.earlier is None:
            return []
        source, rows = str(self.earlier["source"]), self.earlier["rows"]
        before = [str(f["path"]) for f in self.earlier.get("files", ())]
        gone = [path for path in before if source != self.source or path not in self.files]
        if not gone:
            return []
        more = f" and {len(gone) - 3:,} more" if len(gone) > 3 else ""
        counts = ", ".join(f"{rows.get(t, 0):,} {_NAMES[t]}" for t in ("kernels", "steps"))
        return [
            f"replaced the import of {source} that stood there ({counts}); not in this one: "
            f"{', '.join(gone[:3])}{more}; give several files as one folder, or another --out"
        ]
