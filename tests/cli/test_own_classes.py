"""Reviews of one's own, with columns and classes of any name, as a user trains on them and ablates with them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from made_tasks import text

Headlens = Callable[..., Any]
REVIEWS = ("--task", "classification", "--data", "reviews.csv", "--text", "review", "--label", "stars")


def reviews(name: str = "reviews.csv", stars: tuple[str, ...] = ("poor", "fine", "superb"), rows: int = 30) -> None:
    table = {
        "review": [f"{text(n)} {text(n, 3)}" for n in range(rows)],
        "stars": [stars[n % len(stars)] for n in range(rows)],
    }
    pd.DataFrame(table).to_csv(name, index=False)


@pytest.fixture
def trained(headlens: Headlens, tiny_bert: Path) -> str:
    reviews()
    done = headlens("train", tiny_bert, *REVIEWS, "--steps", 2, "--out", "x")
    assert done.code == 0, done.err
    assert "classification on reviews" in done.out
    return "x/model"


def test_from_training_to_ablation(headlens: Headlens, trained: str) -> None:
    config = json.loads(Path("x/model/config.json").read_text())
    assert config["id2label"] == {"0": "fine", "1": "poor", "2": "superb"}
    reviews(stars=("superb", "fine"))  # one class less than the model
    done = headlens("ablate", trained, *REVIEWS, "--replicates", 100, "--out", "a")
    assert done.code == 0, done.err
    record = json.loads(Path("a/run.json").read_text())
    assert record["task"]["classes"] == ["fine", "poor", "superb"]
    assert pd.read_csv("a/examples.csv")["label"].unique().tolist() == [2, 0]
    pruned = headlens(
        "prune", trained, *REVIEWS, "--target-heads", 3, "--steps", 2, "--law", "most-runs=1", "--out", "p"
    )
    assert pruned.code == 0, pruned.err
    assert "began random" not in pruned.out


def test_what_training_says_to_do_next_can_be_done(headlens: Headlens, tiny_bert: Path) -> None:
    reviews(stars=("bad", "good"))
    reviews("the dev set.csv", stars=("bad", "good"))
    named = ("--labels", "data=bad,good", "--dev-data", "the dev set.csv")
    done = headlens("train", tiny_bert, *REVIEWS, *named, "--steps", 2, "--out", "x")
    assert done.code == 0, done.err
    following = shlex.split(done.out.partition("Next: ")[2])
    assert following[:2] == ["headlens", "ablate"]
    assert "--labels data=bad,good" in " ".join(following)
    again = headlens(*following[1:], "--replicates", 100, "--out", "a")
    assert again.code == 0, again.err


def test_a_model_of_other_classes_is_refused(headlens: Headlens, trained: str) -> None:
    for stars, message in (
        (("1", "2"), "The task classification has 2 classes (1, 2), the model 3 (fine, poor, superb)."),
        (("1", "2", "3"), "calls its outputs fine, poor, superb, and the task has the classes 1, 2, 3"),
    ):
        reviews(stars=stars)
        done = headlens("ablate", trained, *REVIEWS, "--out", "b")
        assert done.code == 2
        assert message in " ".join(done.err.split())


def test_plans_know_the_data(headlens: Headlens, tiny_bert: Path) -> None:
    reviews(stars=("good",))
    assert headlens("ablate", tiny_bert, *REVIEWS, "--dry-run").code == 2
    reviews()
    done = headlens("ablate", tiny_bert, *REVIEWS, "--dry-run")
    assert done.code == 0, done.err
    hub = headlens("train", tiny_bert, *REVIEWS[:2], "--data", "hub:me/mine", "--steps", 2, "--dry-run", "--offline")
    assert hub.code == 0, hub.err
    assert "not downloaded" in hub.out
