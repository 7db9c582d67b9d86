"""Names of a graph while it is walked, and the module that a node's name tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import TypeProto

from predictor.capture.onnx.values import Item


@dataclass(slots=True, eq=False)
class Scope:
    """Names of one graph or function body, and of what surrounds it."""

    names: dict[str, Item] = field(default_factory=dict)
    outer: Scope | None = None
    types: dict[str, TypeProto.Tensor] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)

    def find(self, name: str) -> Item:
        """What a name stands for.

        Raises:
            KeyError: nothing.
        """
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        raise KeyError(name)


def module_of(name: str) -> str:
    """Dotted path of a module from the node name that PyTorch's exporter gives (`/a/b/Conv`)."""
    if not name.startswith("/"):
        return ""
    parts = name.split("/")[1:-1]
    path: list[str] = []
    for part in parts:
        if path and part.rpartition(".")[0] == path[-1]:  # `/layer1/layer1.0`: a list and its item
            path.pop()
        path.append(part)
    return ".".join(path)
