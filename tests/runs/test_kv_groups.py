"""The column `kv_group`, by hand-made tables and by models with shared keys."""

from __future__ import annotations

import pandas as pd
import zoo

from headlens.heads import Head
from headlens.interventions.compacting import compact_model
from headlens.models.loading import LoadedModel
from headlens.runs.kv_groups import KV_GROUP, SharedKeys, add_kv_groups
from headlens.runs.run import shared_keys
from headlens.tables.every_table import TABLES

GROUPED = SharedKeys(("a", "x/a"), {("decoder", 0): 2, ("decoder", 1): 3})
OWN = SharedKeys(("b",), {})


def rows(*cells: tuple[str, str, object, object]) -> pd.DataFrame:
    return pd.DataFrame(list(cells), columns=["model", "stack", "layer", "head"]).assign(value=1.0)


def test_groups_stand_beside_their_heads() -> None:
    frame = rows(("a", "decoder", 0, 3), ("a", "decoder", 1, 3), ("b", "decoder", 0, 3), ("x/a", "encoder", 0, 3))
    add_kv_groups(frame, [GROUPED, OWN])
    assert list(frame.columns) == ["model", "stack", "layer", "head", KV_GROUP, "value"]
    assert frame[KV_GROUP].tolist() == [1, 1, pd.NA, pd.NA]
    again = frame.copy()
    add_kv_groups(frame, [GROUPED, OWN])
    pd.testing.assert_frame_equal(frame, again)


def test_tables_without_shared_keys_stay_as_they_are() -> None:
    for frame in (rows(("b", "decoder", 0, 3)), pd.DataFrame({"model": ["a"], "layer": [0]}), rows()):
        before = frame.copy()
        add_kv_groups(frame, [OWN, GROUPED])
        pd.testing.assert_frame_equal(frame, before)


def test_rows_of_no_model_and_of_no_head() -> None:
    frame = rows(("a", "decoder", 0.0, 5.0), ("a", "all", float("nan"), float("nan"))).drop(columns="model")
    add_kv_groups(frame, [GROUPED])
    assert frame[KV_GROUP].tolist() == [2, pd.NA]


def test_models_say_what_they_share() -> None:
    small = zoo.ZOO["llama"].build()
    # One head of each group goes: the heads that are left have keys of their own, and the numbers of before.
    compact_model(small, [Head("decoder", layer, h) for layer in range(3) for h in (0, 2)])
    for model, expected in ((zoo.ZOO["llama"].build(), 2), (small, 2), (zoo.ZOO["bert"].build(), None)):
        found = shared_keys(LoadedModel("m", model, None, None)).shared_by
        assert set(found.values()) == ({expected} if expected else set())


def test_every_table_about_heads_declares_it() -> None:
    named = [s for tables in TABLES.values() for s in tables.values() if {"stack", "layer", "head"} <= set(s.names)]
    assert len(named) > 10
    for schema in named:
        assert schema.names[schema.names.index("head") + 1] == KV_GROUP
    assert KV_GROUP not in TABLES["ablate"]["pruning"].names
