"""Options that several commands have."""

from __future__ import annotations

from headlens.option_values import names_or_none
from headlens.options import CORPUS, MODEL, OUTPUT, STATISTICS, TASK, TRAINING, Option

MODEL_NAME = Option("Hugging Face id, local folder, or 'demo' (MiniLM, embedded).", metavar="MODEL", argument=True)
ONE_OR_TWO_MODELS = Option(
    "Hugging Face id, folder or 'demo'; two go side by side.", metavar="[MODEL] [SECOND]", shown="demo", argument=True
)
SEVERAL_MODELS = Option(
    "Hugging Face id, folder or 'demo'; several go side by side.", metavar="[MODEL]...", shown="demo", argument=True
)
TRAINED_MODEL = Option(
    "Checkpoint to go on from, or new:bert-small, new:albert-small, new:marian-small (also -tiny, -base), or by "
    "layers, heads, width: new:marian-3x8x128.",
    metavar="MODEL",
    argument=True,
)
CORPUS_SOURCE = Option("demo, FILE.conllu, FILE.txt, FILE.tsv|csv|jsonl (with --column), hub:NAME.", CORPUS, "SOURCE")
TARGET_FILE = Option("Translations, or second sentences of pairs, line by line.", CORPUS, "FILE")
SENTENCE_COLUMN = Option("Column with the sentences.", CORPUS, "NAME")
TARGET_COLUMN = Option("Column with the translations, or second sentences.", CORPUS, "NAME")
SPLIT = Option("Split of a hub data set.", CORPUS, "NAME")
LIMIT = Option("Read only the first N sentences or examples.", CORPUS, "N", at_least=1)
LONG_SENTENCES = Option("Sentences longer than the model reads: leave them out, or cut them between words.", CORPUS)
PARSER = Option(
    "Where trees come from: gold, spacy:MODEL, stanza:LANG, stanza:LANG@DIR, or conllu:FILE by text.", CORPUS, "PARSER"
)
HELD_OUT_TEXT = Option("Text that the model is evaluated on.", CORPUS, "SOURCE", shown="a part of the corpus")
HELD_OUT_TARGET = Option("Translations of --dev.", CORPUS, "FILE")
FREQUENCY = Option("wordfreq:LANG, corpus, FILE or none.", STATISTICS, "LIST")
LEVEL = Option("What attends to what; syntax and rare words always compare words.", STATISTICS)
BATCH_TOKENS = Option("Tokens of a batch, padding included.", MODEL, "N", at_least=1)
BATCH_TOKENS_SHOWN = "2048, on a GPU 16384"  # where the device decides, see `headlens.corpora.batches`
# Runs that differ in their seed alone are asked the same.
SEED_HELP = "Of everything that is drawn at random, but for the words that are masked to measure."
SEED = Option(SEED_HELP, STATISTICS, at_least=0, at_most=2**32 - 1)
EXAMPLE_SOURCES = Option(
    "Examples with answers: FILE.tsv|csv|jsonl|json (also .gz) or hub:NAME; given twice, one after the other.",
    TASK,
    "SOURCE",
    shown="that of the task",
)
EXAMPLE_COLUMNS = Option(
    "Columns that are not called as in the task's data sets, comma-separated: text=review,label=stars.",
    TASK,
    "ROLE=NAME",
    shown="",
)
SKIP_BROKEN = Option(
    "Leave out rows and sentences that cannot be read: at most 1 % of a source, or up to 10 if these are no more than "
    "a quarter of it. A note tells how many.",
    CORPUS,
)
EXAMPLE_SPLIT = Option("Split of a hub data set.", TASK, "NAME", shown="train to train, else the task's")
CLASS_LABELS = Option(
    "Classes in the order of the model's outputs (model=negative,positive) or of the data's numbers (data=…), where "
    "names do not say it.",
    TASK,
    "WHOSE=NAMES",
    shown="",
)
BLEU_TOKENIZER = Option(
    "sacreBLEU's tokenizer for BLEU, with --task translation.",
    TASK,
    shown="that of the target language where it is known, else 13a",
)
PREDICTED = Option(
    "A test set without labels: predictions for all of its rows are written as GLUE takes them, such as SST-2.tsv.",
    TASK,
    "SOURCE",
    shown="",
)
HELD_OUT_EXAMPLES = Option("Examples that the model is evaluated on.", TASK, "SOURCE", shown="a part of the data")
MASKED_SHARE = Option("Share of the tokens that are to be guessed, for mlm.", TRAINING)
LABEL_SMOOTHING = Option("Label smoothing of translation.", TRAINING)
VOCABULARY = Option("Pieces of a new model's own vocabulary.", TRAINING, "N")
LONGEST = Option(
    "Tokens of a block, of a side of a pair, or of an example.",
    TRAINING,
    "N",
    shown="128, or what the model reads if fewer; of an example what the model reads",
    at_least=4,
)
NEXT_SENTENCE = Option(
    "For mlm: also learn whether the second half of a block follows the first, as BERT does (ALBERT: whether the two "
    "are swapped).",
    TRAINING,
)
FREEZE = Option(
    "Parts that are not trained, comma-separated: encoder, decoder, embeddings, head, all, none.",
    metavar="PARTS",
    parse=names_or_none,
    shown="none; of the embedded task all",
)
FIGURES = Option("Draw figures; `headlens report` can do so later.", OUTPUT, flags=("--figures/--no-figures",))
