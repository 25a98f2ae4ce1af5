"""Calls as type checkers see them, for mypy alone (`.ci/lint`): it refuses those with a mark, and no others.

A mark is an ignored error, and strict mypy reports one that ignores nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import assert_type

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import headlens


def right(
    loaded: headlens.LoadedModel, metrics: Sequence[headlens.Metric], number: np.int64, share: np.float32
) -> None:
    """What works at run time."""
    result = headlens.classify("demo")
    assert_type(result, headlens.Result)
    assert_type(result.tables, Mapping[str, pd.DataFrame])
    assert_type(result.findings, list[str])
    assert_type(result.plot("confidence"), Figure)
    headlens.classify([loaded, "demo"], ["A sentence."], metrics=metrics, limit=number, positional=share, keep="0.5")
    headlens.classify((loaded.model, loaded.tokenizer), pd.Series(["A sentence."]), relations=["nsubj", "obj"])
    headlens.classify(Path("model"), Path("text.txt"), relations="nsubj,obj", target=Path("target.txt"), device=None)
    headlens.classify(out="runs/demo", resume=True)
    headlens.ablate("demo", "sst2", data="dev.tsv", prune=[3, 10], mode="mean")
    headlens.ablate(data=[Path("dev.tsv"), "hub:glue"], prune=3, margin=1)
    headlens.attend("A sentence.", second=loaded, heads=[1, "3-5"], without=[headlens.Head("encoder", 2, 8)])
    headlens.compact(loaded, "encoder.0.1,encoder.2.3")
    headlens.compact(loaded, [headlens.Head("encoder", 0, 1), "encoder.2.3"], out=Path("smaller"))
    headlens.masks(keep=[0.5, "0.7"], learn_spans=0.1, graph=["graphs.json"])
    headlens.prune(lambdas=np.float64(0.1), gates=["encoder"])
    headlens.relevance(compare="taylor,gradxact")
    headlens.report(result, "runs/demo", Path("runs/other"), format=["png"])
    headlens.reproduce("voita2019", scale="card")


def wrong(anything: object) -> None:
    """What is refused at run time too."""
    headlens.clasify("demo")  # type: ignore[attr-defined]
    headlens.classify("demo", nonsense=1)  # type: ignore[call-arg]
    headlens.classify(3)  # type: ignore[arg-type]
    headlens.classify(limit="3")  # type: ignore[arg-type]
    headlens.classify(limit=0.5)  # type: ignore[arg-type]
    headlens.classify(figures="no")  # type: ignore[arg-type]
    headlens.classify(similarity="some")  # type: ignore[arg-type]
    headlens.classify(out=3)  # type: ignore[arg-type]
    headlens.classify(show=True)  # type: ignore[call-arg]
    headlens.ablate(data=pd.DataFrame())  # type: ignore[arg-type]
    headlens.ablate(keep=[0.5])  # type: ignore[arg-type]
    headlens.attend(layer=[1])  # type: ignore[arg-type]
    headlens.masks(learn_spans=anything)  # type: ignore[arg-type]
    headlens.probe(metrics=[])  # type: ignore[call-arg]
    headlens.relevance(compare=["epsilom"])  # type: ignore[list-item]
    headlens.reproduce()  # type: ignore[call-arg]
    headlens.train_dam(form="Additive")  # type: ignore[arg-type]
