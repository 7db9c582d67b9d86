"""Names that profilers give: categories of events, collectives, copies, annotations.

Older and newer releases of PyTorch, NCCL and RCCL name the same things differently; this table
knows both. Matching ignores case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

OP, ANNOTATION, RUNTIME, KERNEL, MEMCPY, MEMSET = range(6)
"""Categories of events that are kept."""
DEVICE_CATEGORIES: tuple[int, ...] = (KERNEL, MEMCPY, MEMSET)
"""Categories that occupy a device."""

_CATEGORIES: Mapping[str, int] = {
    "cpu_op": OP, "operator": OP,
    "user_annotation": ANNOTATION,
    "kernel": KERNEL, "concurrent_kernel": KERNEL,
    "gpu_memcpy": MEMCPY, "memcpy": MEMCPY,
    "gpu_memset": MEMSET, "memset": MEMSET,
    "runtime": RUNTIME, "driver": RUNTIME,
}  # fmt: skip

Kind: TypeAlias = Literal["compute", "communication", "copy"]
KINDS: tuple[Kind, ...] = ("compute", "communication", "copy")
"""What occupies a device: kernels that compute, collectives, copies and fills by the copy engine
or driver."""

_COMMUNICATION = re.compile(
    r"(?<![a-z0-9])(nccl|rccl|msccl|oneccl|hccl)"
    r"|(?<![a-z0-9])(cross_device_reduce|(one|two)_shot_all_?reduce|multimem_(all|reduce|one))"
    r"|(?<![a-z0-9])nvshmem|userbuffers_",
    re.IGNORECASE,
)
_COLLECTIVES: tuple[tuple[str, str], ...] = (
    ("reduce_?scatter", "reduce_scatter"),
    ("all_?gather", "all_gather"),
    ("all_?reduce|cross_device_reduce|multimem_all", "all_reduce"),
    ("all_?to_?all", "all_to_all"),
    ("send|recv", "send_recv"),
)
_STEP = re.compile(r"ProfilerStep\s*#?\s*(\d+)", re.IGNORECASE)


@lru_cache(maxsize=4096)
def category_of(name: str) -> int | None:
    """The category that an event's `cat` names; None for those that are not kept."""
    key = name.strip().lower()
    found = _CATEGORIES.get(key)
    if found is None and key.endswith(("_runtime", "_driver")):  # cuda, hip, xpu, mtia
        return RUNTIME
    return found


def is_communication(kernel: str) -> bool:
    """Whether a kernel's name is that of a collective, by the libraries' old and new names."""
    return _COMMUNICATION.search(kernel) is not None


def collective_of(name: str) -> str:
    """The op of the vocabulary that a collective's name means; `collective` when it tells none."""
    for pattern, op in _COLLECTIVES:
        if re.search(pattern, name, re.IGNORECASE):
            return op
    return "collective"


def step_number(annotation: str) -> int | None:
    """The number of a `ProfilerStep#N` annotation; None for others."""
    found = _STEP.match(annotation)
    return int(found[1]) if found else None


def is_graph_launch(runtime: str) -> bool:
    """Whether a runtime call replays a captured graph (`cudaGraphLaunch`, `hipGraphLaunch`)."""
    return "graphlaunch" in runtime.lower()


def short_name(kernel: str, length: int = 60) -> str:
    """A kernel's name without return type, arguments and most template parameters."""
    name = re.sub(r"^void\s+", "", kernel)
    name = name.replace("(anonymous namespace)::", "")
    head = re.split(r"[<(]", name, maxsplit=1)[0]
    inner = re.search(
        r"(?:native::)?(\w+(?:Functor|_kernel_cuda|_kernel_impl|Op|Ops))\b", name[len(head) :]
    )
    text = f"{head}<{inner[1]}>" if inner and inner[1] not in head else head
    return text if len(text) <= length else text[: length - 1] + "…"
