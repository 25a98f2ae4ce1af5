"""What steps need that is not here, and what follows for the steps after them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headlens.analyses.reproduce import recipe
from headlens.analyses.reproduce.paper_recipe import Step
from headlens.analyses.reproduce.recipe import missing_of


def step(name: str, *, gpu: bool = False, **options: Any) -> Step:
    return Step(name, "train", "a model", options, gpu=gpu)


@pytest.fixture(autouse=True)
def no_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recipe, "hub_answers", lambda: False)
    monkeypatch.setattr(recipe, "choose_device", lambda _: torch.device("cpu"))
    monkeypatch.setattr(recipe.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(recipe.constants, "HF_HOME", str(tmp_path))


def test_what_is_missing_and_what_takes_something_of_it() -> None:
    steps = [
        step("first", gpu=True, model="google-bert/bert-base-uncased", data=["hub:nyu-mll/glue:sst2"]),
        step("second", models=["{first}/model"], parser="spacy:no_such_model"),
        step("third", mask=["{second}/masks/x.safetensors"], model="demo"),
        step("fourth", model="demo", corpus="demo", parser="gold"),
        step("fifth", model="new:bert-tiny"),
    ]
    needs = "a GPU, hub:nyu-mll/glue, hub:google-bert/bert-base-uncased"
    assert missing_of(steps) == {
        "first": needs,
        "second": f"{needs}, the spaCy model no_such_model",
        "third": f"{needs}, the spaCy model no_such_model",
    }


def test_what_is_there_needs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = [step("first", gpu=True, model="google-bert/bert-base-uncased", data=["hub:nyu-mll/glue:sst2"])]
    for name in ("models--google-bert--bert-base-uncased", "datasets--nyu-mll--glue"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    assert missing_of(asked) == {"first": "a GPU"}
    monkeypatch.setattr(recipe, "choose_device", lambda _: torch.device("cuda"))
    assert missing_of(asked) == {}
    (tmp_path / "hub" / "datasets--nyu-mll--glue").rmdir()
    assert missing_of(asked) == {"first": "hub:nyu-mll/glue"}
    (tmp_path / "datasets" / "nyu-mll___glue").mkdir(parents=True)
    assert missing_of(asked) == {}
    monkeypatch.setattr(recipe, "hub_answers", lambda: True)
    assert missing_of([step("other", model="nobody/nothing")]) == {}
