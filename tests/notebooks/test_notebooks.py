"""The notebooks run as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from predictor.checkpoint import DEFAULT_CHECKPOINT, list_releases

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
TELLS = {
    "quickstart": ("90% interval", "nvidia-v100-pcie-32gb"),
    "transfer": ("90% interval", "mean error", "share inside"),
}


@pytest.mark.skipif(DEFAULT_CHECKPOINT not in list_releases(), reason="the default is not shipped")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=240, resources=resources).execute()
    printed = [str(output) for cell in notebook.cells for output in cell.get("outputs", ())]
    for words in TELLS[path.stem]:
        assert any(words in text for text in printed), words


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_is_stored_without_outputs(path: Path) -> None:
    import nbformat

    cells = nbformat.read(path, as_version=4).cells
    assert not any(cell.get("outputs") for cell in cells)
