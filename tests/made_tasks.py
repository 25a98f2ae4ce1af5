"""Examples of any task, made of a few words."""

from __future__ import annotations

from saved import build
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.learning.training_set import TrainingSet
from headlens.models.loading import LoadedModel
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.classification import ChoiceTask, OwnClassification
from headlens.tasks.example_sources import MemoryExamples
from headlens.tasks.examples import AnswerSpan, Question, TaskExample, TextExample
from headlens.tasks.task import Task
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_heads import with_task_head

WORDS = ["the", "old", "cat", "sees", "a", "red", "house", "near", "the", "river", "and", "sleeps", "there", "today"]
CONTEXT = " ".join(WORDS * 3)
TASKS: dict[str, Task] = {name: entry.task for name, entry in CATALOGUE.items()}
TASKS["classification"] = OwnClassification(classes=("bad", "fair", "good"))


def text(number: int, shift: int = 0) -> str:
    return " ".join(WORDS[(number + shift) % 7 : (number + shift) % 7 + 2 + number % 5])


def example(task: Task, number: int) -> TaskExample:
    key = str(number)
    if task.head == "question-answering":
        start = CONTEXT.index(WORDS[number % 7])
        return Question(key, text(number), CONTEXT, (AnswerSpan(WORDS[number % 7], start),))
    if task.head == "multiple-choice":
        return TextExample(key, tuple(text(number, i) for i in range(5)), number % 4)
    texts = {"paraphrase": 3, "cloze": 3, "sst2": 1, "cola": 1, "classification": 1, "mlm": 1}.get(task.name, 2)
    labels = len(task.labels) or (task.candidates if isinstance(task, ChoiceTask) else 6)
    return TextExample(key, tuple(text(number, i) for i in range(texts)), number % labels)


def given_examples(task: Task, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int = 12) -> Examples:
    """As the model reads them."""
    source = MemoryExamples(tuple(example(task, n) for n in range(count)), "made")
    return Examples.of(task, source, LoadedModel("tiny", model, tokenizer, None))


def sentiment_table(rows: int = 30) -> str:
    """A file of sentences of two classes, as SST-2 comes."""
    return "sentence\tlabel\n" + "".join(f"{text(n)} {text(n, 3)}\t{n % 3 % 2}\n" for n in range(rows))


def taught(
    tokenizer: PreTrainedTokenizerBase, name: str = "sst2", kind: str = "BertModel"
) -> tuple[LoadedModel, TrainingSet]:
    """A tiny model with the head that a task needs, and a lesson of 20 examples."""
    task = CATALOGUE[name].task
    loaded = LoadedModel("tiny", build(kind, len(tokenizer), max_position_embeddings=60), tokenizer, None)
    loaded = LoadedModel("tiny", with_task_head(loaded, task, 0).model, tokenizer, None)
    source = MemoryExamples(tuple(example(task, n) for n in range(20)), "made")
    return loaded, TrainingSet.of_task(loaded, task, source)
