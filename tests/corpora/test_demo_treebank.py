"""The bundled treebank: sound by the rules of Universal Dependencies, and like English EWT as its README says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from treebank_checks import MIN_INSTANCES, faults_of, offset_shares, read_mentions, read_trees

import headlens.corpora

DEMO = Path(headlens.corpora.__file__).parent / "data" / "demo.conllu"


def test_no_fault_and_large_enough() -> None:
    assert faults_of(DEMO, []) == []
    trees = list(read_trees(DEMO))
    words = [word for tree in trees for word in tree.words]
    assert len(trees) >= 600
    assert len(words) / len(trees) >= 15
    assert sum(n >= MIN_INSTANCES for n, _, _ in offset_shares(trees).values()) >= 15
    assert len(read_mentions(trees)[0]) > 2700


@pytest.mark.shared_data
def test_tags_are_those_of_ewt_and_fixed_offsets_as_good_as_there(shared: Path) -> None:
    reference = list(read_trees(shared / "data" / "ud_english_ewt" / "en_ewt-ud-dev.conllu"))
    trees = list(read_trees(DEMO))
    ours, theirs = offset_shares(trees), offset_shares(reference)
    off = {name: ours[name][2] - theirs[name][2] for name in list(theirs)[:15]}
    # The README compares with train and dev; dev alone is .02 off in places.
    assert max(map(abs, off.values())) < 0.07, off


# The documents of the entities that are named below.
PART = "# newdoc".join(
    part
    for part in ["", *DEMO.read_text(encoding="utf-8").split("# newdoc")[1:]]
    if not part or any(f"({entity}-" in part for entity in ("e0", "e1", "e300", "e308"))
)


def test_a_part_has_no_fault_of_its_own(tmp_path: Path) -> None:
    (path := tmp_path / "demo.conllu").write_text(PART, encoding="utf-8")
    assert faults_of(path, []) == []


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda text: text.replace("\t0\troot\t", "\t1\troot\t", 1), "root"),
        (lambda text: text.replace("Entity=e1)", "Entity=e2)", 1), "closed but not the last opened"),
        (lambda text: text.replace("Entity=e1)", "_", 1), "bracket of e1 is not closed"),
        (lambda text: text.replace("(e1-object-3-", "(e1-object-3", 1), "e1-object-3 has not 4 attributes"),
        (lambda text: text.replace("(e1-object-3-", "(e1-place-3-", 1), "e1 is place and object"),
        (lambda text: text.replace("(e1-object-3-", "(e1-bridge-3-", 1), "unknown type bridge of e1"),
        (lambda text: text.replace("(e1-object-3-", "(e1-object-2-", 1), "2 is no head of the mention of e1"),
        (lambda text: text.replace("(e1-object-3-", "(e1-object-3-(e0-object-3-", 1), "closed but not the last opened"),
        (lambda text: text.replace("Entity=e1)", "Entity=e1)e1", 1), "e1)e1 is not made of brackets alone"),
        (lambda text: text.replace("(e308-time-", "(e300-time-", 1), "e300 stands in another document, too"),
        (lambda text: text.replace("(e308-time-1-)", "(e308-time-1-)(e0-time-1-)", 1), "e0 is one of another"),
        (lambda text: text.replace("# text = ", "# text = x", 1), "text"),
    ],
)
def test_damage_is_found(tmp_path: Path, damage: Callable[[str], str], fault: str) -> None:
    """A check that cannot fail would prove nothing."""
    (path := tmp_path / "demo.conllu").write_text(damage(PART), encoding="utf-8")
    assert any(fault in found for found in faults_of(path, [])), faults_of(path, [])[:3]
