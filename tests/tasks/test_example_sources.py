"""The hash of a task's data."""

from dataclasses import replace

from headlens.tasks.example_sources import DataSummary, SourceCounts, fingerprint
from headlens.tasks.examples import AnswerSpan, Question, TextExample

TEXT = TextExample("1", ("A cat.", "No."), 1.0)
ASKED = Question("q", "Who?", "A cat.", (AnswerSpan("cat", 2),))


def test_content_counts_and_names_do_not() -> None:
    assert fingerprint([TEXT, ASKED]) == fingerprint([replace(TEXT, id="2"), replace(ASKED, id="x")])
    others = [
        [ASKED, TEXT],
        [TEXT],
        [replace(TEXT, label=0.0), ASKED],
        [replace(TEXT, texts=("A cat.No.",)), ASKED],
        [replace(TEXT, texts=("A cat. ", "No.")), ASKED],
        [TEXT, replace(ASKED, context="A cat. ")],
        [TEXT, replace(ASKED, answers=())],
    ]
    assert len({fingerprint(examples) for examples in [[TEXT, ASKED], *others]}) == 8


def test_lone_surrogates_are_content_too() -> None:
    assert fingerprint([replace(TEXT, texts=("\ud800",))]) != fingerprint([replace(TEXT, texts=("?",))])


def test_counts() -> None:
    counts = SourceCounts(rows=12, unlabelled=2, too_long=1, too_short=3, examples=6)
    assert DataSummary.of("dev", counts, "ab") == DataSummary(12, 2, 1, 3, 6, name="dev", sha256="ab")
