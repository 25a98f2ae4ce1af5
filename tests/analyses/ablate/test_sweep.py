"""A sweep over a task gives what the task gives of the model with a hook that changes one head, example by example."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import made_tasks
import numpy as np
import pytest
import torch
import zoo
from made_tasks import given_examples
from saved import build
from tiers import rest_slow
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.analyses.ablate import stand_ins
from headlens.analyses.ablate.stand_ins import changed_examples, other_examples
from headlens.analyses.ablate.sweep import HeadRecords, TaskSweep, check_effect, task_heads
from headlens.attention.sites import find_sites
from headlens.errors import ModelError, OptionError, ResumeError, SelfCheckError
from headlens.heads import Head
from headlens.models.loading import LoadedModel
from headlens.replay.modes import Mode
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.processes import Processes
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.task import Floats, Task
from headlens.tasks.task_examples import Examples
from headlens.tasks.task_heads import with_task_head

TASKS = [task for task in made_tasks.TASKS.values() if task.head not in ("seq2seq-lm", "causal-lm")]
PAIRS = [entry.task for entry in CATALOGUE.values() if entry.task.head == "seq2seq-lm"]
SST2 = CATALOGUE["sst2"].task
# One task for each kind of head and of texts.
KINDS = ("sst2", "mnli", "stsb", "paraphrase", "similarity", "mlm", "swag", "squad2")


def translating(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    return {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": pad, "forced_eos_token_id": None}


def made(
    task: Task, tokenizer: PreTrainedTokenizerBase, name: str = "BertModel", count: int = 6
) -> tuple[PreTrainedModel, Examples]:
    model = build(name, len(tokenizer), **(translating(tokenizer) if name.startswith("Marian") else {}))
    if task.head != "seq2seq-lm":
        model = with_task_head(LoadedModel("tiny", model, tokenizer, None), task, 0).model.eval()
    model = model.double()
    return model, given_examples(task, model, tokenizer, count)


Change = Callable[[torch.Tensor], torch.Tensor]


@contextmanager
def changed(model: PreTrainedModel, head: Head, change: Change) -> Iterator[None]:
    """What the output projection of a head's layer gets is changed, (batch, query, heads, d) at a time."""
    site = next(s for s in find_sites(model) if (s.stack, s.layer) == head[:2])
    # ALBERT: every depth runs the same module.
    depth = [s for s in find_sites(model) if s.module == site.module].index(site)
    calls = [0]

    def hook(_: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        calls[0] += 1
        depths = sum(s.module == site.module for s in find_sites(model))
        if (calls[0] - 1) % depths != depth:
            return args
        return (change(args[0].unflatten(-1, (site.n_heads, -1)).clone()).flatten(-2), *args[1:])

    with ExitStack() as stack:
        handle = zoo.projection(model, site).register_forward_pre_hook(hook)
        stack.callback(handle.remove)
        yield


def records(model: PreTrainedModel, examples: Examples) -> Floats:
    """One example at a time."""
    task, found = examples.task, []
    for prepared in examples.prepared:
        batch = task.collate([prepared], examples.reader, "cpu")
        found.append(task.read(task.run(model, batch), batch))
    return np.concatenate(found)


def without(head: Head) -> Change:
    def change(output: torch.Tensor) -> torch.Tensor:
        output[..., head.head, :] = 0
        return output

    return change


def alone(head: Head) -> Change:
    def change(output: torch.Tensor) -> torch.Tensor:
        kept = torch.zeros_like(output)
        kept[..., head.head, :] = output[..., head.head, :]
        return kept

    return change


def assert_swept(
    model: PreTrainedModel, examples: Examples, found: HeadRecords, change: Callable[[Head], Change]
) -> None:
    assert found.there.all()
    np.testing.assert_allclose(found.intact, records(model, examples), rtol=1e-8, atol=1e-10)
    network = examples.task.network(model)
    assert list(found.heads) == [h for s in find_sites(network) for h in s.heads]
    for head, own in found.items():
        with changed(network, head, change(head)):
            np.testing.assert_allclose(own, records(model, examples), rtol=1e-8, atol=1e-10)
        assert dict(found.items())[head] is not None


@pytest.mark.parametrize(
    "task", rest_slow(TASKS, [t for t in TASKS if t.name in ("sst2", "mlm", "squad2", "swag")]), ids=lambda t: t.name
)
def test_every_task(task: Task, wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(task, wordpiece_tokenizer)
    done: list[int] = []
    found = TaskSweep(batch_tokens=50, progress=done.append).run(model, examples)
    assert sum(done) == len(examples) == 6
    assert len(done) > 1
    assert_swept(model, examples, found, without)
    assert not check_effect(found)


@pytest.mark.parametrize("mode", rest_slow(["zero", "keep-only"], ["zero"]))
@pytest.mark.parametrize("task", rest_slow(PAIRS, PAIRS[-1:]), ids=lambda t: t.name)
def test_translation(task: Task, mode: Mode, marian_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(task, marian_tokenizer, "MarianMTModel")
    found = TaskSweep(mode, batch_tokens=60).run(model, examples)
    assert {h.stack for h in found.heads} == {"encoder", "decoder", "cross"}
    np.testing.assert_allclose(found.intact, records(model, examples), rtol=1e-8, atol=1e-10)
    for head in found.heads[:: 3 if task.generates else 1]:
        with changed(model, head, without(head) if mode == "zero" else alone(head)):
            np.testing.assert_allclose(dict(found.items())[head], records(model, examples), rtol=1e-8, atol=1e-10)


def test_albert_at_every_depth(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(SST2, wordpiece_tokenizer, "AlbertModel")
    assert_swept(model, examples, TaskSweep(batch_tokens=50).run(model, examples), without)
    assert_swept(model, examples, TaskSweep("keep-only", batch_tokens=50).run(model, examples), alone)


def test_means_are_those_of_all_real_tokens(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(CATALOGUE["swag"].task, wordpiece_tokenizer)
    sums: dict[str, list[torch.Tensor]] = {}
    sites = find_sites(model)

    def keep(name: str) -> Any:
        return lambda _, args: sums.setdefault(name, []).append(args[0].flatten(0, -2))

    with ExitStack() as stack:
        for site in sites:
            stack.callback(zoo.projection(model, site).register_forward_pre_hook(keep(str(site))).remove)
        for prepared in examples.prepared:  # each by itself: its rows may be padded
            for row in prepared.rows:
                model(input_ids=torch.tensor([[row.ids]]), token_type_ids=torch.tensor([[row.segments]]))
    means = {name: torch.cat(parts).mean(dim=0) for name, parts in sums.items()}

    def at_its_mean(head: Head) -> Change:
        mean = means[f"{head.stack}.{head.layer}"].unflatten(-1, (2, -1))[head.head]

        def change(output: torch.Tensor) -> torch.Tensor:
            output[..., head.head, :] = mean
            return output

        return change

    assert_swept(model, examples, TaskSweep("mean", batch_tokens=100).run(model, examples), at_its_mean)


def test_even_attention_is_one_row_a_mean_of_values(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """Without padding every query sees the same mean: the outputs of all positions are equal."""
    model, examples = made(SST2, wordpiece_tokenizer)
    found = TaskSweep("uniform", batch_tokens=100).run(model, examples)
    head, values = found.heads[-1], []
    site = find_sites(model)[-1]
    attention = model.get_submodule(site.module)
    handle = attention.value.register_forward_hook(lambda m, a, output: values.append(output))

    def even(output: torch.Tensor) -> torch.Tensor:
        output[..., head.head, :] = values[-1].mean(dim=1, keepdim=True).unflatten(-1, (2, -1))[..., head.head, :]
        return output

    with changed(model, head, even):
        expected = records(model, examples)
    handle.remove()
    np.testing.assert_allclose(dict(found.items())[head], expected, rtol=1e-8)


def test_generation_takes_no_means(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(CATALOGUE["translation"].task, marian_tokenizer, "MarianMTModel")
    with pytest.raises(OptionError, match=r"(?s)generates token by token.*--mode zero, or .* translation-loss"):
        TaskSweep("mean").run(model, examples)


def test_some_heads_and_none(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(SST2, wordpiece_tokenizer)
    whole = TaskSweep().run(model, examples)
    some = TaskSweep().run(model, examples, [Head("encoder", 1, 1)])
    assert some.heads == (Head("encoder", 1, 1),)
    np.testing.assert_allclose(dict(some.items())[some.heads[0]], dict(whole.items())[some.heads[0]])
    nothing = TaskSweep().run(model, examples, [])
    assert not nothing.heads
    np.testing.assert_allclose(nothing.intact, whole.intact)


def test_embeddings_come_by_the_encoder_alone(marian_tokenizer: PreTrainedTokenizerBase) -> None:
    model = build("MarianMTModel", len(marian_tokenizer), **translating(marian_tokenizer))
    assert {h.stack for h in task_heads(model, CATALOGUE["similarity"].task)} == {"encoder"}


@dataclass
class Often(Checkpoint):
    """Saves after every batch."""

    due = True

    def __init__(self, path: Path, **identity: str) -> None:
        Checkpoint.__init__(self, path, identity)


@pytest.mark.parametrize("after", rest_slow([1, 2, 3], [2]))
def test_an_interrupted_sweep_goes_on(wordpiece_tokenizer: PreTrainedTokenizerBase, tmp_path: Path, after: int) -> None:
    model, examples = made(SST2, wordpiece_tokenizer)
    expected, done = TaskSweep(batch_tokens=20).run(model, examples), []

    def stop(count: int) -> None:
        done.append(count)
        if len(done) > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TaskSweep(batch_tokens=20, progress=stop, checkpoint=Often(tmp_path / "k")).run(model, examples)
    ran: list[int] = []
    handle = model.get_input_embeddings().register_forward_hook(lambda m, a, o: ran.append(len(o)))
    shown: list[int] = []
    found = TaskSweep(batch_tokens=20, progress=shown.append, checkpoint=Often(tmp_path / "k")).run(model, examples)
    assert sum(shown) == len(examples), "what was done before is shown as done"
    assert len(ran) > 0
    ran.clear()
    again = TaskSweep(batch_tokens=20, checkpoint=Often(tmp_path / "k")).run(model, examples)
    assert not ran, "nothing is left to be run"
    handle.remove()
    for one in (found, again):
        assert one.dump() == expected.dump()
    with pytest.raises(ResumeError, match="the data changed since"):
        TaskSweep(checkpoint=Often(tmp_path / "k", **{"the data": "other"})).run(model, examples)


def test_processes_share_the_examples(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(SST2, wordpiece_tokenizer)
    given: list[bytes] = []

    @dataclass(frozen=True)
    class Two(Processes):
        def gather(self, value: Any) -> list[Any]:
            given.append(value)
            return given

    TaskSweep(processes=Two(1, 2)).run(model, examples)
    found = TaskSweep(processes=Two(0, 2)).run(model, examples)
    assert len(given) == 2
    expected = TaskSweep().run(model, examples)
    assert found.there.all()
    np.testing.assert_allclose(found.intact, expected.intact, rtol=1e-12)
    for head, own in expected.items():
        np.testing.assert_allclose(dict(found.items())[head], own, rtol=1e-12)


def test_records_are_where_their_examples_are() -> None:
    heads = [Head("encoder", 0, 0), Head("encoder", 0, 1)]
    found = HeadRecords(heads, 4, 2)
    assert not found.there.all()
    part = np.arange(4.0).reshape(2, 2)
    found.put([3, 0], np.stack([part, part, part + 10]))
    assert found.has([0, 3])
    assert not found.has([0, 1])
    other = HeadRecords(heads, 4, 2)
    other.put([1, 2], np.stack([part] * 3))
    other.take(found.dump())
    assert other.there.all()
    assert other.intact.tolist() == [[2, 3], [0, 1], [2, 3], [0, 1]]
    assert dict(other.items())[heads[1]].tolist() == [[12, 13], [0, 1], [2, 3], [10, 11]]


def test_heads_that_change_nothing_are_told() -> None:
    heads = [Head("encoder", 0, 0), Head("encoder", 0, 1)]
    found, part = HeadRecords(heads, 2, 1), np.ones((2, 1))
    found.put([0, 1], np.stack([part, part, part * 2]))
    assert check_effect(found) == [heads[0]]
    found.put([0, 1], np.stack([part] * 3))
    with pytest.raises(SelfCheckError, match="changed nothing for any example"):
        check_effect(found)
    with pytest.raises(ModelError, match="what it answers does not come from its heads"):
        check_effect(found, constant=True)
    assert check_effect(found, counts=True) == heads, "a poor model may write nothing right with any heads"
    assert check_effect(HeadRecords([], 0, 1)) == []


def head_outputs(model: PreTrainedModel, examples: Examples, place: int) -> dict[tuple[str, int], torch.Tensor]:
    """What the output projections of all layers get when one example is read, (rows, query, heads, d) by layer."""
    kept: dict[tuple[str, int], torch.Tensor] = {}
    for site in find_sites(model):

        def keep(output: torch.Tensor, key: tuple[str, int] = (site.stack, site.layer)) -> torch.Tensor:
            kept[key] = output.clone()
            return output

        with changed(model, site.heads[0], keep):
            batch = examples.task.collate([examples.prepared[place]], examples.reader, "cpu")
            examples.task.run(model, batch)
    return kept


def of_another(
    model: PreTrainedModel, examples: Examples, donors: Examples, other: list[int]
) -> Callable[[Head], Change]:
    """A change that puts a head's output on another example in its place; the examples come in their order."""
    outputs = [head_outputs(model, donors, place) for place in range(len(donors))]

    def change_of(head: Head) -> Change:
        seen = [0]

        def change(output: torch.Tensor) -> torch.Tensor:
            donor = other[seen[0]]
            seen[0] += 1
            instead, rows = outputs[donor][head[:2]], donors.prepared[donor].rows
            for row in range(len(output)):
                own = rows[row % len(rows)]
                length = len(own.ids) if head.stack == "encoder" else len(own.labels)
                for place in range(output.shape[1]):
                    source = instead[row % len(rows), min(place, length - 1)]
                    output[row, place, head.head] = source[head.head]
            return output

        return change

    return change_of


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("sst2", "BertModel"),
        ("sst2", "AlbertModel"),
        ("swag", "BertModel"),
        ("mlm", "BertForMaskedLM"),
        ("translation-loss", "MarianMTModel"),
    ],
)
def test_outputs_on_another_example_stand_in(
    task: str, name: str, wordpiece_tokenizer: PreTrainedTokenizerBase, marian_tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer = marian_tokenizer if name.startswith("Marian") else wordpiece_tokenizer
    model, examples = made(CATALOGUE[task].task, tokenizer, name, 5)
    place_of = {id(p): place for place, p in enumerate(examples.prepared)}
    other = [place_of[id(p)] for p in other_examples(examples, seed=1)]
    assert sorted(other) == list(range(len(examples)))
    assert all(place != donor for place, donor in enumerate(other))
    change = of_another(model, examples, examples, other)
    for tokens in (1, 10_000):  # one by one, and all together
        found = TaskSweep("resample", tokens, seed=1).run(model, examples)
        assert_swept(model, examples, found, change)


def test_outputs_on_changed_texts_stand_in(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(SST2, wordpiece_tokenizer)
    swapped = [
        replace(p, rows=tuple(replace(r, ids=(r.ids[0], *r.ids[-2:0:-1], r.ids[-1])) for r in p.rows))
        for p in examples.prepared
    ]
    changed_texts = replace(examples, prepared=tuple(swapped))
    paired = replace(examples, prepared=changed_examples(examples, changed_texts))
    found = TaskSweep("counterfactual", changed=paired).run(model, examples)
    assert_swept(model, examples, found, of_another(model, examples, changed_texts, list(range(len(examples)))))
    restored = TaskSweep("denoise", changed=examples).run(model, paired)
    assert_swept(model, paired, restored, of_another(model, paired, examples, list(range(len(examples)))))
    with pytest.raises(OptionError, match=r"of the \d+ texts of --pairs are those of the data, unchanged"):
        changed_examples(examples, examples)
    shorter = replace(swapped[0], rows=tuple(replace(r, ids=r.ids[1:]) for r in swapped[0].rows))
    moved = replace(swapped[0], example=replace(swapped[0].example, id="another"))
    for prepared, message in (
        (swapped[:3], "--pairs has 3 examples that the model reads, and the data"),
        ([shorter, *swapped[1:]], "The changed text of example .* has .* tokens, and its original"),
        ([moved, *swapped[1:]], "The row another of --pairs would stand for"),
    ):
        with pytest.raises(OptionError, match=message):
            changed_examples(examples, replace(examples, prepared=tuple(prepared)))
    with pytest.raises(OptionError, match=r"Give them with --pairs"):
        TaskSweep("counterfactual").run(model, examples)


def test_constants_that_cost_least_cost_no_more_than_zero_and_means(
    wordpiece_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the examples that they are fitted to; the constants of a half are used on the other one."""
    model, examples = made(SST2, wordpiece_tokenizer, count=12)
    model.classifier.weight.data *= 50  # else hardly anything depends on a head
    monkeypatch.setattr("headlens.analyses.ablate.stand_ins.EPOCHS", 60)
    nll = SST2.columns.index("nll")
    of_all = np.ones(len(examples), bool)
    constants = stand_ins._constants_of(model, examples, 0)
    fixed = stand_ins.BestConstants((constants, constants), of_all)
    monkeypatch.setattr(stand_ins.BestConstants, "fitted", lambda *_: fixed)
    loss = {m: TaskSweep(m).run(model, examples).without[..., nll].mean(1) for m in ("zero", "mean", "optimal")}
    assert (loss["optimal"] <= np.minimum(loss["zero"], loss["mean"]) + 1e-3).all()
    assert (loss["optimal"] < loss["mean"] - 1e-3).any()


def test_constants_of_one_half_serve_the_other(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    model, examples = made(SST2, wordpiece_tokenizer, count=12)
    fitted = stand_ins.BestConstants.fitted(model, examples, 0)
    found = TaskSweep("optimal", seed=0).run(model, examples)
    for number, of in enumerate((~fitted.half, fitted.half)):  # whose constants, on which examples

        def change_of(head: Head, number: int = number) -> Change:
            site = next(s for s in find_sites(model) if (s.stack, s.layer) == head[:2])

            def change(output: torch.Tensor) -> torch.Tensor:
                output[..., head.head, :] = fitted.constants[number][site][head.head]
                return output

            return change

        # `half` is True where constants come from the other half, which is the first of the two.
        chosen = ~of
        part = examples.part(chosen)
        for head, own in found.items():
            with changed(model, head, change_of(head)):
                np.testing.assert_allclose(own[chosen], records(model, part), rtol=1e-8, atol=1e-10)
    twice = stand_ins.BestConstants.fitted(model, examples, 0)
    for one, other in zip(fitted.constants, twice.constants, strict=True):
        assert all(torch.equal(one[site], other[site]) for site in one)
    with pytest.raises(OptionError, match=r"--mode optimal fits constants.*5 examples are too few"):
        TaskSweep("optimal").run(model, examples.part(np.arange(len(examples)) < 5))
    assert all(p.requires_grad for p in model.parameters())
