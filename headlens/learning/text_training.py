"""Training of language and translation models on text: the recipe of `headlens train`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel

from headlens.attention.sites import find_sites, is_decoder_only
from headlens.corpora.batches import IGNORED
from headlens.corpora.encoded_corpus import UnknownTokens
from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.sentence import Corpus
from headlens.errors import CorpusError, OptionError
from headlens.files import output_errors
from headlens.learning import objectives, training_text
from headlens.learning.batch_sampler import epoch_batches
from headlens.learning.loop import Evaluate, TrainingData
from headlens.learning.new_models import (
    PREFIX,
    byte_tokenizer,
    marian_tokenizer,
    new_model,
    wordpiece_tokenizer,
)
from headlens.learning.training_options import BLOCK, TextOptions, TextTask
from headlens.models.language_outputs import next_logits, token_logits
from headlens.models.loading import LoadedModel, choose_device, tokenizer_of
from headlens.models.model_options import Device
from headlens.runs.run import Run
from headlens.tasks.language_modeling import CausalLM
from headlens.tasks.task_heads import with_masked_head, with_task_head

TextData = training_text.MaskedText | training_text.CausalText | training_text.TextHalves | training_text.ParallelText


# What names translations beside --target, and those of what is held out.
TARGET_COLUMN, DEV_TARGET = "--data-args target-column", "--data-args dev-target"
_FITTING: dict[TextTask, str] = {
    "translation": "a translation model",
    "causal-lm": "a decoder",
    "mlm": "an encoder-only model",
}


def text_task_of(model: PreTrainedModel) -> TextTask:
    """Returns what a model of this kind learns of text."""
    if model.config.is_encoder_decoder:
        return "translation"
    return "causal-lm" if is_decoder_only(model) else "mlm"


def check_text_task(task: str, name: str, model: PreTrainedModel) -> None:
    """Checks that a model of this kind can learn a task of text.

    Raises:
        OptionError: if it cannot.
        UnsupportedModelError: if that cannot be told, as its attention is hidden from headlens.
    """
    if task != (suited := text_task_of(model)):
        find_sites(model)  # refuses models of which it is not known whether they are decoders
        raise OptionError(
            f"--task {task} needs {_FITTING[cast('TextTask', task)]}; {name} is {_FITTING[suited]}.",
            f"Give another model, or --task {suited}.",
        )


def loaded_model(loaded: LoadedModel, options: TextOptions, seed: int) -> tuple[LoadedModel, tuple[str, ...]]:
    """A checkpoint to train on, with a masked-LM head where there was none, and its parts that began random.

    Raises:
        ModelError: if it has no tokenizer.
        OptionError: if it cannot learn the task.
        UnsupportedModelError: if that cannot be told, as its attention is hidden from headlens.
    """
    tokenizer = tokenizer_of(loaded)
    check_text_task(options.task, loaded.name, loaded.model)
    if options.task == "translation":
        loaded.require_language("target")
        return loaded, ()
    if options.task == "causal-lm":
        headed = with_task_head(loaded, CausalLM(), seed)
        return replace(loaded, model=headed.model), headed.fresh
    if tokenizer.mask_token_id is None:
        raise OptionError(f"The tokenizer of {loaded.name} has no mask token.", "Give a masked language model.")
    headed = with_masked_head(loaded, seed, next_sentence=options.next_sentence)
    return replace(loaded, model=headed.model), headed.fresh


def block_length(loaded: LoadedModel, requested: int | None) -> int:
    """Tokens of a block of text that a model learns: those asked for, or `BLOCK`, or fewer if the model reads fewer.

    Raises:
        OptionError: if more are asked for than the model reads.
    """
    limit = loaded.max_length
    if requested is None:
        return min(BLOCK, limit or BLOCK)
    if limit is not None and requested > limit:
        raise OptionError(
            f"--data-args longest {requested} is more than the {limit} tokens that {loaded.short_name} reads.",
            f"Give {limit} or fewer.",
        )
    return requested


def read_data(loaded: LoadedModel, corpus: Corpus, options: TextOptions, seed: int) -> TextData:
    """A corpus as the model reads it.

    Raises:
        OptionError: if blocks are to be longer than the model reads.
        CorpusError: if nothing of it can be used.
    """
    tokenizer, longest = tokenizer_of(loaded), block_length(loaded, options.longest)
    if options.task == "translation":
        return replace(training_text.read_pairs(sentence_pairs(corpus), tokenizer, longest), pad_id=loaded.pad_id)
    if options.task == "causal-lm":
        blocks = training_text.read_stream(_texts(corpus), tokenizer, longest)
        return training_text.CausalText(blocks, loaded.pad_id)
    masking = training_text.MaskedText(
        (),
        mask_id=int(tokenizer.mask_token_id or 0),
        special=frozenset(tokenizer.all_special_ids),
        vocabulary=len(tokenizer),
        share=options.mask_share,
        seed=seed,
        pad_id=loaded.pad_id,
    )
    if options.next_sentence:
        return training_text.read_halves(
            _texts(corpus), tokenizer, longest, masking, training_text.order_of(loaded.model)
        )
    return replace(masking, blocks=training_text.read_blocks(_texts(corpus), tokenizer, longest))


def objective_of(options: TextOptions) -> objectives.Objective:
    """Returns the training loss: label-smoothed cross-entropy for translation, the plain one otherwise.

    With next sentences, the loss of telling whether the second half of a row follows the first is added.
    """
    if options.task == "translation":
        return objectives.SmoothedTokens(options.label_smoothing)
    return objectives.MaskedTokenLoss()


def beyond_tokens(options: TextOptions) -> list[str]:
    """Returns in words what the loss of `objective_of` has beyond the cross-entropy of tokens that `evaluation` has."""
    smoothing = options.label_smoothing if options.task == "translation" else 0.0
    return [f"label smoothing {smoothing:g}"] * (smoothing > 0) + ["next sentences"] * options.next_sentence


def predicted(data: TrainingData, batch_tokens: int, name: str = "labels") -> Counter[int]:
    """How often each token is to be predicted in `evaluation`, or each answer on next sentences.

    Args:
        data: held out.
        batch_tokens: as `evaluation` has it.
        name: of these in a batch: `labels`, or `objectives.NEXT`, of which most data has none.
    """
    counts: Counter[int] = Counter()
    for indices in epoch_batches(data.lengths, batch_tokens, 0, 0):
        if (labels := data.batch(indices, 0).get(name)) is None:
            break
        counts.update(labels[labels != IGNORED].tolist())
    return counts


def chance_loss(counts: Counter[int]) -> float:
    """The lowest loss of `evaluation` without reading: that of predicting every token by its frequency there, in nats.

    Args:
        counts: see `predicted`.
    """
    shares = [count / counts.total() for count in counts.values()]
    return -sum(share * math.log(share) for share in shares)


def evaluation(data: TrainingData, batch_tokens: int) -> Evaluate:
    """Mean loss in nats per token without label smoothing, its perplexity, and the share of tokens guessed right.

    With next sentences, these are still those of tokens, and `next_sentence` is the share of rows classified right.
    """
    batches = epoch_batches(data.lengths, batch_tokens, 0, 0)

    def evaluate(model: nn.Module) -> dict[str, float]:
        device = next(model.parameters()).device
        loss = right = units = rows = follows = 0.0
        for indices in batches:
            inputs = objectives.moved(data.batch(indices, 0), device)
            labels = inputs["labels"]
            # An encoder-decoder makes the inputs of its decoder from labels; others would compute a loss of their own.
            left_out = (*objectives.NO_ARGUMENTS, *["labels"] * (not isinstance(data, training_text.ParallelText)))
            outputs = model(**{k: v for k, v in inputs.items() if k not in left_out})
            logits = token_logits(outputs).float()
            counted = labels != IGNORED
            loss += float(nn.functional.cross_entropy(logits[counted], labels[counted], reduction="sum"))
            right += float((logits[counted].argmax(dim=-1) == labels[counted]).sum())
            units += float(counted.sum())
            if objectives.NEXT in inputs:
                follows += float((next_logits(outputs).argmax(dim=-1) == inputs[objectives.NEXT]).sum())
                rows += len(labels)
        mean = loss / units
        metrics = {"loss": mean, "perplexity": math.exp(mean) if mean < 700 else math.inf, "accuracy": right / units}
        return metrics | ({"next_sentence": follows / rows} if rows else {})

    return evaluate


def unknown_text_notes(
    loaded: LoadedModel,
    data: TextData,
    name: str,
) -> list[str]:
    """What of a text the tokenizer does not know: a note for each side of which it is much.

    Raises:
        CorpusError: if it is more than the model is allowed.
    """
    encoder, notes = SentenceEncoder(tokenizer_of(loaded)), list[str]()
    for side in (data.sources, data.targets) if isinstance(data, training_text.ParallelText) else (data.blocks,):
        unknown = UnknownTokens()
        for ids in side:
            unknown.add(ids.tolist(), encoder.unknown_id, encoder.special_kinds)
        unknown.check(loaded.max_unknown, name, encoder.tokenizer)
        notes += unknown.notes(encoder.tokenizer)
    return notes


def _texts(corpus: Corpus) -> Iterator[str]:
    return (example.source.text for example in corpus)


def sentence_pairs(corpus: Corpus, option: str = TARGET_COLUMN) -> Iterator[tuple[str, str]]:
    """Yields the sentences of a corpus with their translations.

    Args:
        corpus: pairs.
        option: names the translations, where --target does not.

    Raises:
        CorpusError: if there are no translations.
    """
    for example in corpus:
        if example.target is None:
            raise CorpusError("there are no translations.", f"Name them with --target or {option}.", path=corpus.name)
        yield example.source.text, example.target.text


def made_new(run: Run, name: str, corpus: Corpus, text: TextOptions, seed: int, device: Device) -> LoadedModel:
    """A model with random weights, on its device, and a vocabulary learned from the corpus.

    Args:
        run: under way; processes learn the vocabulary one each.
        name: such as `new:bert-small` or `new:marian-small`.
        corpus: pairs for translation.
        text: task and size of the vocabulary.
        seed: of the weights.
        device: where it is to be.

    Raises:
        OptionError: if there is no such model, or no such vocabulary can be made.
    """
    # Hidden: nothing that a run which fails here could go on from.
    folder = run.kept(".vocabulary")
    # Positions are counted from 0 and cost little: a model reads at least 512 tokens.
    kind, longest = name.removeprefix(PREFIX), max(text.longest or 0, 512)
    with run.reporter.status("learning a vocabulary"), output_errors(folder):
        if run.processes.first:
            folder.mkdir(parents=True, exist_ok=True)
        run.processes.gather(None)
        # Every process learns it by itself, from the same text: they need not wait for one another.
        process_folder = folder / str(run.processes.rank)
        process_folder.mkdir(exist_ok=True)
        if text.task == "translation":
            both_sides = (side for pair in sentence_pairs(corpus) for side in pair)
            tokenizer = marian_tokenizer(both_sides, text.vocabulary, process_folder, longest)
        elif text.task == "causal-lm":
            tokenizer = byte_tokenizer(_texts(corpus), text.vocabulary, longest)
        else:
            tokenizer = wordpiece_tokenizer(_texts(corpus), text.vocabulary, longest)
        model: Any = new_model(kind, text.task, tokenizer, longest, seed, halves=text.next_sentence)
    return LoadedModel(name, model.to(choose_device(device)), tokenizer, None)
