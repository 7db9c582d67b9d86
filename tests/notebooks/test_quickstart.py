"""The quick start runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.checkpoint import DEFAULT_CHECKPOINT, list_releases

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"


@pytest.mark.skipif(DEFAULT_CHECKPOINT not in list_releases(), reason="the default is not shipped")
def test_quickstart_runs(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=120, resources=resources).execute()
    printed = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("90% interval" in str(output) for output in printed)
    assert any("nvidia-v100-pcie-32gb" in str(output) for output in printed)


def test_quickstart_is_stored_without_outputs() -> None:
    import nbformat

    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not any(cell.get("outputs") for cell in cells)
