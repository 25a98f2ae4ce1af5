"""The families of models headlens names."""

from __future__ import annotations

import pytest
import transformers
from transformers import CONFIG_MAPPING
from zoo import ZOO

from headlens.attention.supported_models import FAMILIES, UNSUPPORTED, Family, dispatching_model_types
from headlens.heads import STACKS


@pytest.fixture(scope="module")
def dispatching() -> list[str]:
    return dispatching_model_types()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.model_type)
def test_families_exist_and_dispatch(family: Family, dispatching: list[str]) -> None:
    assert family.model_type in CONFIG_MAPPING
    assert family.model_type in dispatching
    assert set(family.stacks) <= set(STACKS)
    assert family.example.count("/") == 1


def test_every_family_named_is_run_through_the_checks_of_the_seam() -> None:
    checked = {getattr(transformers, entry.config).model_type for entry in ZOO.values() if entry.config}
    # Before transformers 5.15 T5 does not ask the registry, and is refused.
    assert {f.model_type for f in FAMILIES} - {"t5"} <= checked


def test_every_family_once() -> None:
    types = [f.model_type for f in FAMILIES]
    assert len(set(types)) == len(types)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_families_exist_and_do_not_dispatch(name: str, dispatching: list[str]) -> None:
    model_type = name.lower().replace("-", "")
    assert model_type in CONFIG_MAPPING
    assert model_type not in dispatching


def test_types_are_sorted_and_many(dispatching: list[str]) -> None:
    assert dispatching == sorted(set(dispatching))
    assert len(dispatching) > 100
