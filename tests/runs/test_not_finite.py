"""A run that met NaN or infinity: going on with it would meet them again."""

from __future__ import annotations

from pathlib import Path

import pytest
import zoo

from headlens.errors import DivergedError, ModelError, NotFiniteError, OptionError
from headlens.models.loading import LoadedModel
from headlens.runs.folder import RunFolder
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.task_heads import check_head


@pytest.mark.parametrize(
    ("kind", "resumes"),
    [(DivergedError, False), (NotFiniteError, False), (ModelError, True), (KeyboardInterrupt, True)],
)
def test_only_what_may_end_otherwise_is_to_be_resumed(kind: type[BaseException], resumes: bool, tmp_path: Path) -> None:
    def fail() -> None:
        with RunFolder.create(tmp_path / "run", command="train", model="m") as run:
            run.start({"arguments": {}})
            with run.file("kept.txt") as path:
                path.write_text("kept")
            raise kind("the loss is nan")

    with pytest.raises(kind) as told:
        fail()
    assert any("--resume" in note for note in getattr(told.value, "__notes__", [])) == resumes


def test_no_training_is_advised_that_cannot_be() -> None:
    model = zoo.ZOO["gpt2"].build()
    with pytest.raises(OptionError, match="cannot be trained for it") as told:
        check_head(LoadedModel("no", model, None, None), CATALOGUE["mlm"].task)
    assert "headlens train" not in str(told.value)
