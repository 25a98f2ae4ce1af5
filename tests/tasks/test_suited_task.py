"""The task of data without one: that of the bundled data, of labels, or of the model's head."""

from __future__ import annotations

from pathlib import Path

import pytest
from saved import build

from headlens.errors import InputError
from headlens.tasks.open_task import suited_data, tells_task
from headlens.tasks.task_options import TaskData

FILES = {
    "book.txt": "A film.\nIt ends.\n",
    "reviews.csv": "review,stars\nA film,good\nIt ends,bad\n",
    "triples.tsv": "text\tfirst\tsecond\tlabel\na film\tone film\tno film\t0\n",
    "pairs.tsv": "de\ten\nEin Film.\tA film.\n",
}


@pytest.mark.parametrize(
    ("kind", "data", "task"),
    [
        ("BertForMaskedLM", TaskData(data=("book.txt",)), "mlm"),
        ("BertForMaskedLM", TaskData(data=("reviews.csv",), text=("review",)), "mlm"),
        ("BertForMaskedLM", TaskData(data=("reviews.csv",), text=("review",), label="stars"), "classification"),
        ("BertForMaskedLM", TaskData(data=("triples.tsv",)), "paraphrase"),
        ("BertForMaskedLM", TaskData(), "paraphrase"),
        ("BertForPreTraining", TaskData(data=("book.txt",)), "mlm"),
        ("AlbertForMaskedLM", TaskData(data=("book.txt",)), "mlm"),
        ("BertForSequenceClassification", TaskData(data=("reviews.csv",)), "classification"),
        ("BertForSequenceClassification", TaskData(data=("book.txt",)), "classification"),
        ("BertForSequenceClassification", TaskData(data=("triples.tsv",)), "paraphrase"),
        ("AlbertForSequenceClassification", TaskData(data=("x.csv",), columns=("text=a,label=b",)), "classification"),
        ("BertForQuestionAnswering", TaskData(data=("reviews.csv",)), "squad"),
        ("BertForMultipleChoice", TaskData(data=("reviews.csv",), label="stars"), "swag"),
        ("MarianMTModel", TaskData(data=("book.txt",)), "translation-loss"),
        ("MarianMTModel", TaskData(data=("pairs.tsv",), columns=("source=de", "target=en")), "translation-loss"),
        ("MarianMTModel", TaskData(data=("triples.tsv",)), "paraphrase"),
        ("GPT2LMHeadModel", TaskData(data=("book.txt",)), "causal-lm"),
        ("GPT2LMHeadModel", TaskData(), "causal-lm"),
        ("GPT2LMHeadModel", TaskData(data=("reviews.csv",), text=("review",)), "causal-lm"),
        ("BertModel", TaskData(data=("book.txt",)), "mlm"),
        ("BertModel", TaskData(data=("reviews.csv",)), "paraphrase"),
        ("MarianMTModel", TaskData("translation", data=("book.txt",)), "translation"),
    ],
)
def test_which_task_it_is(
    kind: str, data: TaskData, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_text(content, encoding="utf-8")
    ids = {"pad_token_id": 0, "decoder_start_token_id": 0} if kind == "MarianMTModel" else {}
    model = build(kind, 40, **ids)
    suited = suited_data(data, model)
    assert suited.task == task
    # Nothing else of the data changes; what is learned of translations is not their loss.
    assert TaskData(**{**vars(suited), "task": data.task}) == data
    assert suited_data(data, model, learns=True).task == task.removesuffix("-loss")


def test_errors_tell_which_task_was_chosen() -> None:
    model = build("BertForMaskedLM", 40)
    for given, told in (
        (TaskData(data=("x.txt",)), ["No --task is given: mlm was chosen for a BertForMaskedLM and this data."]),
        (TaskData("mlm", data=("x.txt",)), []),
        (TaskData(), []),
    ):
        with pytest.raises(InputError) as error, tells_task(given, "mlm", model):
            raise InputError("No.")
        assert getattr(error.value, "__notes__", []) == told
