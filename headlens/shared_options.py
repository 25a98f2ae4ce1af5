"""Options that several commands have, and the arguments of a request by their names."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from headlens.option_values import folder, names_or_none
from headlens.options import CORPUS, MODEL, OUTPUT, STATISTICS, TASK, TRAINING, Option, option

MODEL_NAME = Option("Hugging Face id, local folder, or demo: the bundled MiniLM.", metavar="MODEL", argument=True)
ONE_OR_TWO_OR_STEPS = Option(
    "Hugging Face id (NAME or NAME@REVISION), folder or 'demo'; two are compared side by side, checkpoints of one "
    "training shown by step.",
    metavar="[MODEL]...",
    shown="demo",
    argument=True,
)
SEVERAL_MODELS = Option(
    "Hugging Face id (NAME or NAME@REVISION), folder or 'demo'; several are shown side by side, checkpoints of one "
    "training by step.",
    metavar="[MODEL]...",
    shown="demo",
    argument=True,
)
TRAINED_MODEL = Option(
    "Checkpoint to start from, or a new model: new:bert-small, new:albert-small, new:gpt2-small, new:llama-small, "
    "new:marian-small (also -tiny, -base), or by layers, heads and width: new:marian-3x8x128.",
    metavar="MODEL",
    argument=True,
)
TRAINED_ENCODER = Option(
    "Checkpoint with an encoder to start from, or a new one: new:bert-small, new:albert-small (also -tiny, -base), or "
    "by layers, heads and width: new:bert-3x8x128.",
    metavar="MODEL",
    argument=True,
)
CORPUS_SOURCE = Option("demo, FILE.conllu|txt, FILE.tsv|csv|jsonl (with --column), hub:NAME.", CORPUS, "SOURCE")
TARGET_FILE = Option("Translations, or the second sentences of pairs, line by line.", CORPUS, "FILE")
SENTENCE_COLUMN = Option("Column that contains the sentences.", CORPUS, "NAME")
TARGET_COLUMN = Option("Column that contains the translations, or second sentences.", CORPUS, "NAME", group="data-args")
SPLIT = Option("Split of a hub data set.", CORPUS, "NAME", group="data-args")
LIMIT = Option("Read only the first N sentences or examples.", CORPUS, "N", at_least=1)
LONG_SENTENCES = Option(
    "Sentences longer than the model's limit: skip them, or split them into windows between words.",
    CORPUS,
    group="data-args",
)
PARSER = Option(
    "Where trees come from: gold, spacy:MODEL, stanza:LANG, stanza:LANG@DIR, or conllu:FILE, matched by text.",
    CORPUS,
    "PARSER",
)
HELD_OUT_TEXT = Option("Text on which the model is evaluated.", CORPUS, "SOURCE", shown="a part of the corpus")
HELD_OUT_TARGET = Option("Translations of --dev.", CORPUS, "FILE", group="data-args", needs="dev")
FREQUENCY = Option(
    "Word frequencies for the rare-word metric: wordfreq:LANG, corpus, FILE or none.",
    STATISTICS,
    "LIST",
)
LEVEL = Option(
    "Units between which attention is measured; syntax and rare words always use words.", STATISTICS, group="data-args"
)
BATCH_TOKENS = Option("Tokens per batch, padding included.", MODEL, "N", at_least=1)
BATCH_TOKENS_SHOWN = "2048; on a GPU 16384"  # where the device decides, see `headlens.corpora.batches`
# Runs that differ in their seed alone are asked the same.
SEED_HELP = "Random seed for everything that is sampled, except for the words masked in evaluation."
SEED = Option(SEED_HELP, STATISTICS, at_least=0, at_most=2**32 - 1)
MARGIN = Option(
    "Smallest loss of the metric that matters: what is taken away is called not needed where the loss is shown to be "
    "below it.",
    STATISTICS,
    "NUMBER",
    above=0,
    shown="0.01; 1 of BLEU and chrF, 1 % of a loss, 0.1 logits; at most a tenth of what is above guesses",
)
EXAMPLE_SOURCES = Option(
    "Labelled examples: FILE.tsv|csv|jsonl|json or hub:NAME; also .gz. If repeated, the sources are concatenated.",
    TASK,
    "SOURCE",
    shown="the task's own data",
)
EXAMPLE_COLUMNS = Option(
    "Columns whose names differ from those in the task's data sets, comma-separated: text=review,label=stars.",
    TASK,
    "ROLE=NAME",
    shown="",
)
SKIP_BROKEN = Option(
    "Leave out rows and sentences that cannot be read: at most 1 % of a source, or up to 10 rows if that is no more "
    "than "
    "a quarter of it. A note says how many.",
    CORPUS,
    group="data-args",
)
CHAT = Option(
    "Read conversations, lists of messages in the column `messages` or another, as the chat template of this model "
    "writes them.",
    CORPUS,
    "MODEL",
    group="data-args",
)
EXAMPLE_SPLIT = Option(
    "Split of a hub data set.", TASK, "NAME", shown="for training: train; otherwise the task's", group="data-args"
)
CLASS_LABELS = Option(
    "Classes in the order of the model's outputs (model=negative,positive) or of the class numbers in the data "
    "(data=…), where "
    "names do not make it clear.",
    TASK,
    "WHOSE=NAMES",
    shown="",
)
BLEU_TOKENIZER = Option(
    "sacreBLEU's tokenizer for BLEU, with --task translation.",
    TASK,
    shown="the one for the target language if known, otherwise 13a",
    group="data-args",
    needs="task=translation",
)
PREDICTED = Option(
    "A test set without labels: predictions for all of its rows are written in GLUE's submission format, such as "
    "SST-2.tsv; TASK=SOURCE for another task with the same classes; can be repeated.",
    TASK,
    "SOURCE",
    shown="",
)
ALSO_ON = Option(
    "Held-out examples of another task with the same classes, on which the model is evaluated as well, such as "
    "mnli-mm=dev.tsv; a list of several in a TOML file.",
    CORPUS,
    "TASK=SOURCE",
    shown="",
    group="data-args",
)
HELD_OUT_EXAMPLES = Option("Examples on which the model is evaluated.", TASK, "SOURCE", shown="a part of the data")
MASKED_SHARE = Option(
    "Share of tokens to mask and predict, for mlm.", TRAINING, group="training-args", at_least=0, at_most=1
)
LABEL_SMOOTHING = Option("Label smoothing, for translation.", TRAINING, group="training-args", at_least=0, at_most=0.99)
VOCABULARY = Option("Vocabulary size of a new model, in subwords.", TRAINING, "N", group="model-args")
LONGEST = Option(
    "Length limit, in tokens, of a block, of one side of a pair, or of an example.",
    TRAINING,
    "N",
    shown="128, or the model's limit if lower; for examples the model's limit",
    at_least=4,
    group="data-args",
)
NEXT_SENTENCE = Option(
    "For mlm: also train on whether the second half of a block follows the first, as in BERT (ALBERT: whether the "
    "two are swapped).",
    TRAINING,
    group="training-args",
    needs="task=mlm",
)
FREEZE = Option(
    "Parts to freeze, comma-separated: encoder, decoder, embeddings, head (the task head), all, none.",
    metavar="PARTS",
    parse=names_or_none,
    shown="none; for the bundled task all",
    group="training-args",
)
FIGURES = Option(
    "Draw figures; `headlens report` can also draw them later.",
    OUTPUT,
    flags=("--figures/--no-figures",),
    of_program=True,
)
OFFLINE = Option("Never contact the hub.", MODEL, of_program=True)


@dataclass(frozen=True)
class OutputOptions:
    """The folder of a run, whether another run there is replaced, and whether it goes on with the run there."""

    out: Path | None = option(
        None,
        "Run folder; without a name runs/<command>-<model>-<time>.",
        OUTPUT,
        metavar="DIR",
        parse=folder,
        shown="a new one in runs/",
    )
    overwrite: bool = option(False, "Replace an existing run in that folder.", OUTPUT)
    resume: bool = False


def arguments(request: Any) -> dict[str, Any]:
    """Returns the arguments of a request as run.json and --config hold them: flat, by option, without the folder."""
    by_option: dict[str, Any] = {}
    for field in fields(request):
        value = getattr(request, field.name)
        if isinstance(value, OutputOptions) or not field.metadata.get("recorded", True):
            continue
        by_option |= arguments(value) if is_dataclass(value) else {field.name: _json_value(value)}
    return by_option


def _json_value(value: Any) -> Any:
    """A value as JSON can hold it: tuples as lists, paths as text."""
    if isinstance(value, (list, tuple)):
        return [_json_value(v) for v in value]
    return str(value) if isinstance(value, Path) else value
