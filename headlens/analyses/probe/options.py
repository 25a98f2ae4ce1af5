"""The options of `headlens probe`."""

from __future__ import annotations

from dataclasses import dataclass, field

from headlens import shared_options
from headlens.corpora.corpus_options import CorpusOptions, LongSentences
from headlens.models.model_options import ModelOptions
from headlens.options import CORPUS, DEMO, FEWEST_REPLICATES, STATISTICS, TRAINING, CommandOptions, option
from headlens.shared_options import OutputOptions


@dataclass(frozen=True)
class ProbeOptions:
    """How the probe is learned and measured; `seed` is that of the bootstrap, since learning has no randomness."""

    l2: float = option(1e-4, "Penalty on the squares of the probe's weights.", TRAINING, at_least=0, command_line=False)
    long_sentences: LongSentences = option("skip", shared_options.LONG_SENTENCES)
    batch_tokens: int | None = option(None, shared_options.BATCH_TOKENS, shown=shared_options.BATCH_TOKENS_SHOWN)
    replicates: int = option(1000, "Number of bootstrap samples.", STATISTICS, metavar="N", at_least=FEWEST_REPLICATES)
    seed: int = option(0, shared_options.SEED)


@dataclass(frozen=True)
class ProbeRequest:
    """What `headlens probe` is asked for: a model, and a treebank of which a part is held out."""

    model: str = option(DEMO, shared_options.MODEL_NAME)
    corpus: str = option(DEMO, "Treebank that the probe is learned from: demo, FILE.conllu.", CORPUS, metavar="SOURCE")
    limit: int | None = option(None, shared_options.LIMIT)
    skip_broken: bool = option(False, shared_options.SKIP_BROKEN)
    dev: str | None = option(None, shared_options.HELD_OUT_TEXT)
    dev_share: float = option(
        0.2,
        "Share of the treebank held out for evaluation if --dev is not given.",
        CORPUS,
        at_least=0.01,
        at_most=0.9,
        group="data-args",
    )
    embeddings: str | None = option(
        None,
        "Also learn the probe of attention and word embeddings: of the model's own input embeddings (model), or of "
        "vectors in a FILE of WORD NUMBER NUMBER … lines (GloVe).",
        CORPUS,
        metavar="model|FILE",
        shown="no embeddings",
        group="data-args",
    )
    options: ProbeOptions = field(default_factory=ProbeOptions)
    model_options: ModelOptions = field(default_factory=ModelOptions)
    figures: bool = option(True, shared_options.FIGURES)
    place: OutputOptions = field(default_factory=OutputOptions)

    @property
    def corpus_options(self) -> CorpusOptions:
        """Options with which the treebank is read."""
        return CorpusOptions(limit=self.limit, skip_broken=self.skip_broken, offline=self.model_options.offline)


COMMAND = CommandOptions(
    "probe", (ProbeRequest,), "run_probe", first=("corpus", "dev", "limit", "replicates", "seed", "device")
)
