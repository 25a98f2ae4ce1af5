"""Who numbers the classes: whatever a model or a data set calls them and in whatever order, figures are the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from saved import build
from transformers import AutoConfig, PreTrainedTokenizerBase

from headlens.errors import CorpusError, ModelError, OptionError
from headlens.models.loading import LoadedModel, load
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.class_names import OutputOrder, class_places, output_names, parse_labels
from headlens.tasks.evaluation import Evaluation, EvaluationOptions, evaluate
from headlens.tasks.example_sources import MemoryExamples, SourceCounts, gather, split
from headlens.tasks.examples import TaskExample, TextExample
from headlens.tasks.open_task import DataOptions, open_examples, open_task
from headlens.tasks.task_heads import with_task_head
from headlens.tasks.task_options import TaskData

# What checkpoints and data sets call the classes, besides what the tasks call them.
CALLED = {
    "negative": ("neg", "NEG", "Negative", "label_negative", "__label__neg"),
    "positive": ("pos", "POS", "Positive", "label_positive", "__label__pos"),
    "entailment": ("entail", "ENTAILMENT", "entails", "entailed", "ent", "E", "is_entailment", "yes"),
    "neutral": ("neut", "NEUTRAL", "Neutral ", "n", "label neutral"),
    "contradiction": ("contra", "CONTRADICTION", "contradict", "contradicts", "contradictory", "c"),
    "not_entailment": ("non-entailment", "not entailment", "NotEntailment", "nonentailment", "not_entailed", "False"),
    "unacceptable": ("not_acceptable", "UNACCEPTABLE", "non-acceptable", "ungrammatical", "not grammatical"),
    "acceptable": ("Acceptable", "ACCEPTABLE", "acc", "grammatical"),
    "not_equivalent": ("not equivalent", "NOT_EQUIVALENT", "non-equivalent", "not_paraphrase", "no-duplicate"),
    "equivalent": ("Equivalent", "equiv", "paraphrase", "is_paraphrase", "duplicate"),
    "not_duplicate": ("not-duplicate", "NOT_DUPLICATE", "non_duplicate", "notDuplicate", "is not duplicate", "no"),
    "duplicate": ("Duplicate", "DUPLICATE", "dup", "is_duplicate", "paraphrase", "True"),
}
STYLES: tuple[Callable[[str], str], ...] = (str, str.upper, str.title, lambda name: name.replace("_", "-"))
NOBODY_KNOWS = {"sad", "SAD", "Sad"}
TASKS = ("sst2", "mnli", "qnli", "rte", "cola", "mrpc", "qqp")
WHERE = ("both", "id2label", "label2id", "num_labels", "label2id beside LABEL_0", "id2label beside LABEL_0")


@st.composite
def called(draw: st.DrawFn) -> tuple[str, tuple[int, ...], list[str]]:
    """A task, the class of every place, and a name for every place."""
    name = draw(st.sampled_from(TASKS))
    classes = CATALOGUE[name].task.labels
    order = draw(st.permutations(range(len(classes))))
    styled = [
        draw(st.sampled_from(STYLES))(draw(st.sampled_from((classes[n], *CALLED[classes[n]], "sad")))) for n in order
    ]
    return name, tuple(order), styled


def written(folder: Path, names: Sequence[str], where: str) -> None:
    """Writes the names of a saved model's outputs into one map of its config.json, or into both."""
    forward = {str(number): name for number, name in enumerate(names)}
    backward = {name: number for number, name in enumerate(names)}
    default = {f"LABEL_{number}": number for number in range(len(names))}
    maps: dict[str, dict[str, Any]] = {
        "both": {"id2label": forward, "label2id": backward},
        "id2label": {"id2label": forward},
        "label2id": {"label2id": backward},
        "num_labels": {"label2id": backward, "num_labels": len(names)},
        "label2id beside LABEL_0": {"id2label": {str(n): name for name, n in default.items()}, "label2id": backward},
        "id2label beside LABEL_0": {"id2label": forward, "label2id": default},
    }
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    rest = {key: value for key, value in config.items() if key not in ("id2label", "label2id", "num_labels")}
    (folder / "config.json").write_text(json.dumps(rest | maps[where]), encoding="utf-8")


@pytest.fixture
def judged(wordpiece_tokenizer: PreTrainedTokenizerBase) -> Callable[..., Evaluation]:
    """The records of a tiny model whose outputs are those of the task's classes in some order."""

    def judge(
        name: str, order: Sequence[int], names: Sequence[str] = (), where: str = "both", folder: Any = None
    ) -> Any:
        task = CATALOGUE[name].task
        model: Any = build("BertForSequenceClassification", len(wordpiece_tokenizer), num_labels=len(order))
        head = model.classifier
        with torch.no_grad():
            head.weight.copy_(head.weight[list(order)])
            head.bias.copy_(head.bias[list(order)])
        if folder:
            model.save_pretrained(folder)
            written(folder, names or task.labels, where)
            model = load(str(folder)).model
        source = MemoryExamples(tuple(TextExample(str(n), ("A cat", "it"), float(n % len(order))) for n in range(4)))
        loaded = LoadedModel("tiny", model.eval(), wordpiece_tokenizer, None)
        return evaluate(task, loaded, source, EvaluationOptions(replicates=0))

    return judge


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=settings().max_examples // 2)
@given(called=called(), where=st.sampled_from(WHERE))
def test_a_permuted_model_scores_the_same(tmp_path: Path, judged: Any, called: Any, where: str) -> None:
    name, order, names = called
    assume(where != "label2id" or len(set(names)) == len(names))  # else it does not say how many there are
    try:
        found = judged(name, order, names, where, tmp_path)
    except ModelError as error:
        found = error
    if isinstance(found, ModelError):
        assert set(names) & NOBODY_KNOWS
        assert all(part in str(found) for part in (*CATALOGUE[name].task.labels, "--labels model=NAME,NAME"))
    else:
        torch.testing.assert_close(found.records, judged(name, sorted(order)).records)
        assert not found.notes


@pytest.mark.parametrize("name", sorted(CALLED))
def test_every_spelling_is_known(name: str) -> None:
    task = next(CATALOGUE[task].task for task in TASKS if name in CATALOGUE[task].task.labels)
    for spelling in (name, *CALLED[name]):
        for style in STYLES:
            turned = [style(spelling) if own == name else own for own in reversed(task.labels)]
            assert class_places(turned, task.labels) == tuple(reversed(range(len(turned))))


SST2, MNLI, RTE = (CATALOGUE[name].task.labels for name in ("sst2", "mnli", "rte"))


@pytest.mark.parametrize(
    ("names", "classes", "reason"),
    [
        (("POS", "positive"), SST2, "'POS' and 'positive' are the same class"),
        (("negative", "good"), SST2, "'good' is not one of the task's classes"),
        (("LABEL_1", "LABEL_0"), SST2, "'LABEL_1' is not one of"),
        (("1", "2"), SST2, "'1' is not one of"),
        (("-1", "1"), SST2, "'-1' is not one of"),
        (("LABEL_0", "negative"), SST2, "'LABEL_0' is not one of"),
        (("entailment", "not_entailment", "neutral"), MNLI, "'not_entailment' is not one of"),
        (("none", "entailment"), RTE, "'none' is not one of"),
        (("", "entailment"), RTE, "'' is not one of"),
        (("entailment", "neutral", "contradiction"), RTE, "they are 3, not 2"),
    ],
)
def test_names_that_are_not_the_classes(names: tuple[str, ...], classes: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        class_places(names, classes)


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("0", "1"), ("Class 0", "class_1"), ()])
def test_numbers_are_no_names(names: tuple[str, ...]) -> None:
    assert class_places(names, SST2) is None


def loaded(tokenizer: PreTrainedTokenizerBase, forward: Mapping[int, Any] | None, backward: Any = None) -> LoadedModel:
    model = build("BertForSequenceClassification", len(tokenizer), num_labels=len(forward or backward))
    if forward is not None:
        model.config.id2label = dict(forward)
    model.config.label2id = backward
    return LoadedModel("own/tiny", model, tokenizer, None)


@pytest.mark.parametrize(
    ("forward", "backward", "reason"),
    [
        ({0: "pos", 1: "neg"}, {"neg": 0, "pos": 1}, "id2label calls output 0 'pos', and label2id 'neg'"),
        ({1: "neg", 2: "pos"}, None, "these are the outputs 1, 2 of 2"),
        ({0: "neg", 1: "pos"}, {"neg": "first", "pos": "second"}, r"label2id holds \['first', 'second'\], not numbers"),
        ({0: "neg", 1: "pos"}, {"neg": 0, "pos": 1, "neutral": 2}, "these are the outputs 0, 1, 2 of 2"),
    ],
)
def test_maps_that_contradict_each_other(
    wordpiece_tokenizer: PreTrainedTokenizerBase, forward: Any, backward: Any, reason: str
) -> None:
    model = loaded(wordpiece_tokenizer, forward, backward)
    with pytest.raises(ModelError, match=f"own/tiny.* the classes negative, positive: {reason}") as caught:
        OutputOrder.of(model, SST2)
    assert "--labels model=NAME,NAME" in caught.value.advice
    assert OutputOrder.of(model, SST2, ("positive", "negative")).places == (1, 0)


def test_maps_that_agree(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    for backward in (None, {}, {"NEG": 1, "POS": 0}, {"neg": "1", "pos": "0"}, {"neg": 1, "negative": 1, "pos": 0}):
        assert OutputOrder.of(loaded(wordpiece_tokenizer, {0: "Pos", 1: "Neg"}, backward), SST2).places == (1, 0)
    assert output_names(loaded(wordpiece_tokenizer, {0: True, 1: False})) == ["True", "False"]


@pytest.mark.parametrize("where", WHERE)
def test_a_loaded_model_names_its_outputs(tmp_path: Path, where: str) -> None:
    """Also in what it is saved with, such as by `compact`."""
    names = ("contra", "ent", "neut")
    build("BertForSequenceClassification", num_labels=3).save_pretrained(tmp_path)
    written(tmp_path, names, where)
    config = load(str(tmp_path)).model.config
    assert config.id2label == dict(enumerate(names))
    config.save_pretrained(tmp_path / "again")
    assert AutoConfig.from_pretrained(tmp_path / "again").id2label == dict(enumerate(names))


@pytest.mark.parametrize(
    ("maps", "reason"),
    [
        ({"label2id": {"neg": 1, "pos": 2}}, "these are the outputs 1, 2 of 2"),
        ({"label2id": {"neg": "first", "pos": "second"}}, r"label2id holds \['first', 'second'\], not numbers"),
        ({"label2id": {"neg": 0, "neut": 1, "pos": 2}, "num_labels": 2}, "these are the outputs 0, 1, 2 of 2"),
        ({"label2id": {"neg": 0, "pos": 0, "neut": 1}}, "id2label calls output 0 'neg', and label2id 'pos'"),
        ({"label2id": {"pos": 1}}, "these are the outputs 1 of 2"),
    ],
)
def test_label2id_of_other_numbers(tmp_path: Path, maps: dict[str, Any], reason: str) -> None:
    build("BertForSequenceClassification", num_labels=2).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": None} | maps), encoding="utf-8")
    with pytest.raises(ModelError, match=reason):
        OutputOrder.of(load(str(tmp_path)), SST2)


def test_outputs_without_names_are_told(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    order = OutputOrder.of(loaded(wordpiece_tokenizer, {0: "LABEL_0", 1: "LABEL_1"}), SST2)
    assert (order.places, order.names) == (None, SST2)
    assert order.note == (
        "The outputs of tiny have no names (LABEL_0, LABEL_1); they are assumed to be negative, positive, in this "
        "order. --labels model=NAME,NAME gives another."
    )
    assert OutputOrder.of(loaded(wordpiece_tokenizer, {0: "LABEL_0", 1: "LABEL_1"}), SST2, SST2[::-1]).note == ""
    assert OutputOrder.of(loaded(wordpiece_tokenizer, {0: "a", 1: "b"}), ()) == OutputOrder()


def test_what_a_user_says_goes_before_names_and_is_told(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model = loaded(wordpiece_tokenizer, {0: "NEG", 1: "POS"})
    order = OutputOrder.of(model, SST2, ("positive", "negative"))
    assert order.places == (1, 0)
    assert order.note == "tiny calls its outputs NEG, POS; --labels says positive, negative, which is used."
    assert OutputOrder.of(model, SST2, SST2).note == ""


@pytest.mark.parametrize("given", ["", "model", "model=", "model=a,,b", "them=a,b"])
def test_labels_that_cannot_be_meant(given: str) -> None:
    with pytest.raises(OptionError, match=r"not understood.\nWrite --labels model=NAME,NAME"):
        parse_labels([given])
    with pytest.raises(OptionError, match=r"--labels data=a --labels data=b: not understood"):
        parse_labels(["data=a", "data=b"])
    assert parse_labels(["model= a, b ", "data=b,a"]) == {"model": ("a", "b"), "data": ("b", "a")}


@pytest.mark.parametrize(
    ("task", "whose", "names", "message"),
    [
        ("sst2", "model", "positive", r"--labels positive: .*they are 1, not 2.\nName each of negative, positive once"),
        ("sst2", "data", "good,bad", r"--labels good,bad: .*'good' is not one of"),
        ("mnli", "data", "0,1,2", r"--labels 0,1,2: numbers do not show which class is which"),
        ("stsb", "data", "a,b", r"The task has no classes: leave --labels out"),
        ("mlm", "model", "a,b", r"The task has no classes: leave --labels out"),
    ],
)
def test_labels_that_are_not_the_task_s(task: str, whose: str, names: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.tsv").write_text("text\tlabel\n", encoding="utf-8")
    with pytest.raises(OptionError, match=message):
        open_task(task, tmp_path / "s.tsv", DataOptions(labels=parse_labels([f"{whose}={names}"])))


def read(task: str, path: Path, **options: Any) -> tuple[list[TaskExample], SourceCounts]:
    counts = SourceCounts()
    return list(open_task(task, path, DataOptions(**options))[1].read(counts)), counts


def data_set(classes: Sequence[str], labels: Sequence[int], texts: int) -> datasets.Dataset:
    """A data set whose features name its classes."""
    columns = {1: ("sentence",), 2: ("sentence1", "sentence2")}[texts]
    kinds = {name: datasets.Value("string") for name in columns} | {"label": datasets.ClassLabel(names=list(classes))}
    rows = {name: [f"{name} {n}" for n in range(len(labels))] for name in columns} | {"label": list(labels)}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.mark.usefixtures("own_cache")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(called=called(), labels=st.lists(st.integers(0, 1), min_size=1, max_size=4))
def test_a_permuted_data_set_reads_the_same(tmp_path: Path, called: Any, labels: list[int]) -> None:
    name, order, names = called
    assume(len(set(names)) == len(names))  # features have no name twice
    texts = len(CATALOGUE[name].reader.roles) - 1
    columns = dict(
        zip(CATALOGUE[name].reader.roles, ("sentence1", "sentence2") if texts == 2 else ("sentence",), strict=False)
    )
    path = tmp_path / "own.parquet"
    data_set(names, [order.index(label) for label in labels], texts).to_parquet(path)
    try:
        found: Any = read(name, path, columns=columns | {"label": "label"})
    except CorpusError as error:
        found = error
    if isinstance(found, CorpusError):
        assert set(names) & NOBODY_KNOWS
        assert all(part in str(found) for part in (*CATALOGUE[name].task.labels, "--labels data=NAME,NAME"))
    else:
        examples, counts = found
        assert [example.label for example in examples] == labels
        assert counts.notes == ()


@pytest.mark.usefixtures("own_cache")
def test_data_sets_on_disk_name_their_classes(tmp_path: Path) -> None:
    made = data_set(("POS", "NEG"), [0, 0, 1], 1)
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"validation": made}).save_to_disk(tmp_path / "several")
    (tmp_path / "folder").mkdir()
    made.to_parquet(tmp_path / "folder" / "validation.parquet")
    for place in ("one", "several", "folder"):
        found, counts = read("sst2", tmp_path / place)
        assert [example.label for example in found if isinstance(example, TextExample)] == [1, 1, 0]
        assert counts.notes == ()


@pytest.mark.usefixtures("own_cache")
def test_a_data_set_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_set(("POS", "NEG"), [0, 0, 1], 1).to_parquet(tmp_path / "own.parquet")
    loads: list[str] = []
    plain = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", lambda *own, **more: loads.append(own[0]) or plain(*own, **more))
    source = open_task("sst2", tmp_path / "own.parquet")[1]
    labels = [
        [example.label for example in source.read(SourceCounts()) if isinstance(example, TextExample)] for _ in "ab"
    ]
    assert labels == [[1, 1, 0], [1, 1, 0]]
    assert loads == ["parquet"]


@pytest.mark.usefixtures("own_cache")
def test_other_classes_of_a_data_set_and_what_settles_them(tmp_path: Path) -> None:
    path = tmp_path / "own.parquet"
    data_set(("glad", "sad"), [0, 0, 1], 1).to_parquet(path)
    with pytest.raises(
        CorpusError, match=r"own\.parquet: its classes are glad, sad, and .*'glad' is not one of"
    ) as caught:
        read("sst2", path)
    assert "--labels data=NAME,NAME" in caught.value.advice
    for order, labels in ((("positive", "negative"), [1, 1, 0]), (("NEG", "POS"), [0, 0, 1])):
        found, counts = read("sst2", path, labels={"data": order})
        assert [example.label for example in found if isinstance(example, TextExample)] == labels
        assert counts.notes == ()
    data_set(("neg", "pos"), [0, 0, 1], 1).to_parquet(path)
    found, counts = read("sst2", path, labels={"data": ("positive", "negative")})
    assert [example.label for example in found if isinstance(example, TextExample)] == [1, 1, 0]
    assert counts.notes == ("own calls its classes neg, pos; --labels says positive, negative, which is used.",)


def test_numbers_without_names_are_told(tmp_path: Path) -> None:
    path = tmp_path / "own.tsv"
    path.write_text("sentence\tlabel\nA\tPOS\nB\t0\nC\tLABEL_1\n", encoding="utf-8")
    found, counts = read("sst2", path)
    assert [example.label for example in found if isinstance(example, TextExample)] == [1, 0, 1]
    assert counts.notes == (
        "The classes of own are numbers without names; they are read as 0 (negative), 1 (positive). "
        "--labels data=NAME,NAME gives another order.",
    )
    found, counts = read("sst2", path, labels={"data": ("positive", "negative")})
    assert [example.label for example in found if isinstance(example, TextExample)] == [1, 1, 0]
    assert counts.notes == ()
    both = open_examples(TaskData("sst2", (str(path), str(path)), labels=("model=pos,neg",)))
    assert both[0].outputs == ("positive", "negative")
    kept = split(gather(both[1]), [[0], [1, 2]])[1]
    again = SourceCounts()
    assert len(list(kept.read(again))) == 2
    assert len(again.notes) == 1
    path.write_text("sentence\tlabel\nA\tPOS\nB\tneg\n", encoding="utf-8")
    assert read("sst2", path)[1].notes == ()
    assert read("paraphrase", CATALOGUE["paraphrase"].default)[1].notes == ()


def test_truth_is_a_name_and_no_number(tmp_path: Path) -> None:
    pairs = [{"sentence1": "A", "sentence2": "B", "label": label} for label in (True, False)]
    (tmp_path / "own.json").write_text(json.dumps(pairs), encoding="utf-8")
    for task, labels in (("rte", [0, 1]), ("mrpc", [1, 0])):
        found, counts = read(task, tmp_path / "own.json")
        assert [example.label for example in found if isinstance(example, TextExample)] == labels
        assert counts.notes == ()
    with pytest.raises(CorpusError, match=r"own\.json:1: 'label' has the unknown label False"):
        read("mnli", tmp_path / "own.json", limit=2)


def test_heads_are_kept_with_their_names_in_any_spelling(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    task = CATALOGUE["sst2"].task
    model = loaded(wordpiece_tokenizer, {0: "POS", 1: "NEG"})
    found = with_task_head(model, task, 0)
    assert (found.model, found.fresh, found.notes) == (model.model, (), ())
    assert (found.model.config.id2label, found.model.config.label2id) == ({0: "POS", 1: "NEG"}, {"POS": 0, "NEG": 1})
    told = open_task("sst2", options=DataOptions(labels={"model": ("positive", "negative")}))[0]
    other = loaded(wordpiece_tokenizer, {0: "glad", 1: "sad"})
    found = with_task_head(other, told, 0)
    assert (found.model, found.fresh, found.notes) == (other.model, (), ())
    assert found.model.config.id2label == {0: "positive", 1: "negative"}


def test_heads_that_are_replaced_or_guessed_at_are_told(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    task = CATALOGUE["sst2"].task
    found = with_task_head(loaded(wordpiece_tokenizer, {0: "glad", 1: "sad"}), task, 0)
    assert found.fresh == ("classifier",)
    assert "replaced. own/tiny calls its outputs glad, sad, and the task has the classes negative" in found.notes[0]
    assert "--labels model=NAME,NAME" in found.notes[0]
    kept = with_task_head(loaded(wordpiece_tokenizer, {0: "LABEL_0", 1: "LABEL_1"}), task, 0)
    assert kept.fresh == ()
    assert "have no names" in kept.notes[0]


@pytest.mark.parametrize("kind", ["BertModel", "BertForSequenceClassification"])
def test_labels_of_a_head_that_is_not_there(wordpiece_tokenizer: PreTrainedTokenizerBase, kind: str) -> None:
    told = open_task("sst2", options=DataOptions(labels={"model": ("positive", "negative")}))[0]
    model = LoadedModel("tiny", build(kind, len(wordpiece_tokenizer), num_labels=3), wordpiece_tokenizer, None)
    with pytest.raises(OptionError, match="--labels model=positive,negative: tiny has no head with 2 outputs"):
        with_task_head(model, told, 0)


def test_one_order_of_several_sources_is_told(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tsv").write_text("sentence\tlabel\nA\t0\nB\t1\n", encoding="utf-8")
    files = tuple(str(tmp_path / f"{name}.tsv") for name in ("a", "b"))
    data, counts = TaskData("sst2", files, labels=("data=positive,negative",)), SourceCounts()
    found = list(open_examples(data)[1].read(counts))
    assert [example.label for example in found if isinstance(example, TextExample)] == [1, 0, 1, 0]
    assert counts.notes == ("--labels data=positive,negative is applied to each of a, b.",)
