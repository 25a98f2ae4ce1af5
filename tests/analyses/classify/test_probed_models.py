"""What is told of the probes of several models."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import zoo
from circuits import words

from headlens.analyses.classify.probed_models import ProbedModels
from headlens.models.loading import LoadedModel


def test_notes_of_several_models_have_their_names_but_for_those_of_all() -> None:
    run: Any = SimpleNamespace(reporter=SimpleNamespace(status=lambda _: nullcontext()))
    corpus: Any = ()
    probed = {names: ProbedModels(run, ["induction"], 0, corpus) for names in (("mistral",), ("mistral", "bert"))}
    for names, models in probed.items():
        for name in names:
            models.measure(LoadedModel(name, zoo.ZOO[name].build(vocab_size=90), words(90), None), name)
    alone, both = (models.notes for models in probed.values())
    (unseen,) = alone
    assert unseen.startswith("Probes: in 12 of 12 heads what induction asks for is never within the window")
    later = "Probes: tokens of this model also see those after them, which these roles do not count."
    assert both == [f"mistral: {unseen}", f"bert: {later}"]
    same = ProbedModels(run, ["induction"], 0, corpus)
    for name in ("one", "two"):
        same.measure(LoadedModel(name, zoo.ZOO["mistral"].build(vocab_size=90), words(90), None), name)
    assert same.notes == alone, "known of all"
