"""Translations that a model generates, with BLEU and chrF from counts that add up over sentences."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headlens.corpora.batches import IGNORED
from headlens.errors import OptionError
from headlens.options import BleuTokenizer
from headlens.tasks.examples import TaskExample, texts_of
from headlens.tasks.masked import TranslationLoss, TranslationTask, decoder_inputs
from headlens.tasks.reader import Reader, TokenRow
from headlens.tasks.task import NO_TRAITS, Floats, Task, TaskBatch, text_number

WORDS, CHARACTERS = 4, 6  # longest n-grams of BLEU and chrF
_BLEU_NGRAMS = tuple(f"bleu_{part}_{n + 1}" for part in ("match", "total") for n in range(WORDS))
BLEU_COLUMNS = (*_BLEU_NGRAMS, "written_words", "reference_words")
CHRF_COLUMNS = tuple(f"chrf_{part}_{n + 1}" for n in range(CHARACTERS) for part in ("written", "reference", "match"))
# The columns of records that a metric reads.
_COUNTED = {
    "bleu": slice(len(BLEU_COLUMNS)),
    "chrf": slice(len(BLEU_COLUMNS), len(BLEU_COLUMNS) + len(CHRF_COLUMNS)),
}
BETA = 2.0  # chrF weighs recall so many times as much as precision
_OF_LANGUAGE: dict[str, BleuTokenizer] = {
    **dict.fromkeys(("zh", "zho", "chi", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn", "jap"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}
# By the first word of the names of characters: scripts that write no spaces between words, or whose words sacreBLEU
# parts otherwise, and what it has for them.
_OF_SCRIPT = {"CJK": "zh", "HIRAGANA": "ja-mecab", "KATAKANA": "ja-mecab", "HANGUL": "ko-mecab"}
_OF_SCRIPT |= dict.fromkeys(("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"), "flores200")
# Column that is 1 for translations that stopped at the limit of tokens, without an end.
CUT = "cut"


def bleu_counts(written: str, reference: str, tokenizer: str = "13a") -> list[float]:
    """Counts matching n-grams, all n-grams and words with sacreBLEU: 10 numbers, as in `BLEU_COLUMNS`.

    Raises:
        OptionError: if sacreBLEU has no such tokenizer, or something that it needs is not on this machine.
    """
    score = _bleu(tokenizer).sentence_score(written, [reference])
    return [*map(float, score.counts), *map(float, score.totals), float(score.sys_len), float(score.ref_len)]


@cache
def _bleu(tokenizer: str) -> Any:
    from sacrebleu.metrics.bleu import BLEU  # noqa: PLC0415 - only translations need it
    from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS  # noqa: PLC0415
    from sacrebleu.utils import SACREBLEU_DIR  # noqa: PLC0415

    if tokenizer not in BLEU.TOKENIZERS:
        raise OptionError(f"sacreBLEU has no tokenizer {tokenizer!r}.", f"It has {', '.join(BLEU.TOKENIZERS)}.")
    if (model := SPM_MODELS.get(tokenizer)) is not None:
        file = Path(SACREBLEU_DIR, "models", Path(model["url"]).name)
        if not file.is_file():  # sacreBLEU would fetch it, also with --offline
            advice = f"Fetch it once: python -c \"import sacrebleu; sacrebleu.BLEU(tokenize='{tokenizer}')\""
            raise OptionError(f"--data-args bleu-tokenizer {tokenizer}: there is no {file}.", advice)
    try:
        return BLEU(tokenize=tokenizer, effective_order=True)
    except RuntimeError as error:
        raise OptionError(
            f"BLEU's tokenizer {tokenizer} needs a package that is not installed.",
            f"Install it: pip install 'sacrebleu[{tokenizer[:2]}]' - or choose another, such as --data-args "
            "bleu-tokenizer=char.",
        ) from error


def signatures(tokenizer: str) -> str:
    """Returns sacreBLEU's signatures of BLEU with a tokenizer and of chrF: all that their values depend on.

    Raises:
        OptionError: as in `bleu_counts`.
    """
    from sacrebleu.metrics.chrf import CHRF  # noqa: PLC0415

    bleu_of_corpus, of_characters = copy(_bleu(tokenizer)), CHRF()
    bleu_of_corpus.effective_order = False  # see `bleu`
    bleu_of_corpus.num_refs = of_characters.num_refs = 1
    return f"bleu {bleu_of_corpus.get_signature()}, chrf {of_characters.get_signature()}"


def tokenizer_of_language(code: str) -> BleuTokenizer | None:
    """Returns the tokenizer that sacreBLEU takes for a target language; None for all that it takes 13a for.

    Args:
        code: of ISO 639, also with country or script: `zh`, `zho_Hans`, `ja_XX`.
    """
    return _OF_LANGUAGE.get(code.lower().replace("-", "_").partition("_")[0])


def bleu(counts: Floats) -> Floats:
    """Computes BLEU of a corpus (Papineni et al. 2002), smoothed as sacreBLEU does by default.

    Args:
        counts: sums of `bleu_counts` over the sentences of the corpus, (replicates, 10).

    Returns:
        0 to 100, (replicates,).
    """
    matches, totals, lengths = counts[:, :WORDS], counts[:, WORDS : 2 * WORDS], counts[:, 2 * WORDS :]
    # The k-th length of n-grams without a match counts as 1 / 2^k of one.
    missing = np.cumsum((matches == 0) & (totals > 0), axis=1)
    smoothed = np.where(matches == 0, 0.5**missing, matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(totals > 0, smoothed / totals, 0.0)
        brevity = np.exp(np.minimum(0.0, 1 - lengths[:, 1] / lengths[:, 0]))
        score = 100 * brevity * np.exp(np.log(precision).mean(axis=1))
    return np.where(matches.any(axis=1), score, 0.0)


def chrf_counts(written: str, reference: str) -> list[float]:
    """Counts character n-grams of both texts without white space, and the shared ones, as in `CHRF_COLUMNS`."""
    texts = ["".join(text.split()) for text in (written, reference)]
    counts: list[float] = []
    for n in range(1, CHARACTERS + 1):
        hypothesis, gold = (Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in texts)
        # As in sacreBLEU, n-grams longer than the reference do not count against a translation.
        counts += [float(hypothesis.total()) if gold else 0.0, float(gold.total()), float((hypothesis & gold).total())]
    return counts


def chrf(counts: Floats) -> Floats:
    """Computes chrF2 of a corpus (Popović 2015), as sacreBLEU does.

    Args:
        counts: sums of `chrf_counts` over the sentences of the corpus, (replicates, 18).

    Returns:
        0 to 100, (replicates,).
    """
    written, reference, match = np.moveaxis(counts.reshape(-1, CHARACTERS, 3), -1, 0)  # (replicates, 6) each
    both = (written > 0) & (reference > 0)
    orders = np.maximum(both.sum(axis=1), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision, recall = (np.where(both, match / side, 0.0).sum(axis=1) / orders for side in (written, reference))
        score = (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)
    return 100 * np.where(precision + recall > 0, score, 0.0)


@dataclass(frozen=True)
class Translation(TranslationTask):
    """Translations by beam search, compared with one reference each.

    Records are counts that add up over sentences, so that BLEU and chrF of any sample are exactly sacreBLEU's, and
    whether a translation was `cut`: it had no end within the tokens that it may have; `written` is the same number for
    the same translation. The loss of training is that of
    `TranslationLoss`, whose batches have labels.

    Args:
        name: name of the task.
        beams: width of the beam.
        max_tokens: most tokens of a translation; one that is not done by then is scored as it is.
        tokenizer: name of sacreBLEU's tokenizer; None is that of the model's target language if it has one, else 13a.
    """

    name: str = "translation"
    beams: int = 4
    max_tokens: int = 256
    tokenizer: BleuTokenizer | None = None
    generates: ClassVar[bool] = True

    metrics = reported = ("bleu", "chrf")  # of the corpus, from 0 to 100
    columns = (*BLEU_COLUMNS, *CHRF_COLUMNS, CUT, "written")

    @classmethod
    def of_target(cls, name: str | Path | None, tokenizer: BleuTokenizer | None) -> Translation:
        """Returns the task for translations in a column or a file.

        Args:
            name: name of the column or file, which may end in the code of a language: `translation.zh`, `test.ja.gz`.
            tokenizer: the tokenizer that was asked for; it goes before that of the language.
        """
        language = str(name or "").removesuffix(".gz").rpartition(".")[2]
        return cls(tokenizer=tokenizer or tokenizer_of_language(language))

    def bleu_tokenizer(self, reader: Reader) -> BleuTokenizer:
        """Returns the tokenizer for the translations of the model with that reader."""
        return self.tokenizer or tokenizer_of_language(reader.target_language) or "13a"

    def notes(self, reader: Reader, traits: Mapping[Any, int] = NO_TRAITS) -> list[str]:
        """Returns a note with sacreBLEU's signatures; errors as in `signatures`."""
        del traits
        return [f"sacreBLEU's signatures: {signatures(self.bleu_tokenizer(reader))}."]

    def prepare(self, example: TaskExample, reader: Reader) -> tuple[TokenRow, ...]:
        """Tokenises as `TranslationTask.prepare` does.

        Raises:
            OptionError: if BLEU would be counted in words of 13a that a reference does not have; also as there.
        """
        rows = super().prepare(example, reader)
        if rows and self.tokenizer is None and self.bleu_tokenizer(reader) == "13a":
            _check_script(texts_of(example)[1])
        return rows

    @property
    def differentiable(self) -> Task:
        """Task with the loss of the reference under teacher forcing, since beam search has no gradient."""
        return TranslationLoss(f"{self.name}-loss")

    def run(self, model: PreTrainedModel, batch: TaskBatch) -> Tensor:
        """Generates a translation of every source by beam search, without gradients.

        Returns:
            Token ids, (n, length), with the token that the decoder starts from and padding behind shorter translations.
        """
        generate: Any = model.generate
        longest = self.most_tokens(batch.reader)
        with torch.inference_mode():
            ids: Tensor = generate(**batch.inputs, num_beams=self.beams, do_sample=False, max_new_tokens=longest)
        return ids

    def most_tokens(self, reader: Reader) -> int:
        """Returns the most tokens of a translation: `max_tokens`, or what the model reads if that is less."""
        return self.max_tokens if reader.target_limit is None else min(self.max_tokens, reader.target_limit - 1)

    def texts(self, outputs: Tensor, batch: TaskBatch) -> list[str]:
        """Decodes generated token ids, (n, length), to translations as text.

        Special tokens and white space around a translation are left out.
        """
        decode = batch.reader.tokenizer.batch_decode
        texts: list[str] = decode(outputs, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return [text.strip() for text in texts]

    def read(self, outputs: Any, batch: TaskBatch) -> Floats:
        """Computes the records from generated token ids, (n, length).

        Returns:
            (n, 30): the 10 counts of BLEU, the 18 counts of chrF, 1 for a translation that was cut, else 0, and a
            number that is the same for the same translation.

        Raises:
            OptionError: if the outputs are no ids of that shape; also as in `bleu_counts`.
        """
        if not isinstance(outputs, Tensor) or outputs.dim() != 2 or len(outputs) != len(batch):
            raise OptionError("Translations are read from generated ids.", "Use the task's own `run`.")
        rows, tokenizer = [], self.bleu_tokenizer(batch.reader)
        # Behind the token that a decoder starts from. Many models are made to write the end as the last token.
        generated, longest = outputs[:, 1:], self.most_tokens(batch.reader)
        ended = _ends(generated[:, : longest - 1], batch.reader).any(dim=1).tolist()
        for text, example, end in zip(self.texts(outputs, batch), batch.examples, ended, strict=True):
            reference, cut = texts_of(example)[1], generated.shape[1] >= longest and not end
            rows.append(
                [*bleu_counts(text, reference, tokenizer), *chrf_counts(text, reference), cut, text_number(text)]
            )
        return np.array(rows, dtype=np.float64)

    def statistic(self, metric: str, records: Floats, weights: Floats) -> Floats:
        """Computes corpus BLEU or chrF under every weighting of the examples.

        Args:
            metric: "bleu" or "chrf".
            records: counts of every example, (n, 30).
            weights: how often each example counts, (replicates, n).

        Returns:
            0 to 100, (replicates,); 0 for a weighting that counts no example.
        """
        counts = weights @ records[:, _COUNTED[metric]]
        return bleu(counts) if metric == "bleu" else chrf(counts)

    def changed(self, records: Floats, baseline: Floats, metric: str) -> npt.NDArray[np.bool_]:
        """Returns of which examples the counts differ that the metric reads, (n,)."""
        counted = _COUNTED[metric]
        return np.asarray((records[:, counted] != baseline[:, counted]).any(axis=1))


def _check_script(text: str) -> None:
    letters = [unicodedata.name(character, "").split(" ")[0] for character in text if character.isalpha()]
    others = Counter(script for script in letters if script in _OF_SCRIPT)
    if 2 * others.total() > len(letters):
        # Kana are Japanese, however many characters of Chinese stand among them.
        script = max(others, key=lambda name: (_OF_SCRIPT[name] != "zh", others[name]))
        raise OptionError(
            f"The reference {text[:20]!r} … does not separate words by spaces, as required by 13a, BLEU's "
            "default tokenizer for languages without a tokenizer of their own in sacreBLEU and for unknown languages.",
            f"Name one: --data-args bleu-tokenizer={_OF_SCRIPT[script]}, flores200 or char, or 13a to use it anyway.",
        )


def read_while_writing(ids: Tensor, reader: Reader) -> dict[str, Tensor]:
    """Returns the decoder's inputs for texts that it generated, as if each was the reference, up to its end.

    Args:
        ids: token ids of generated texts, (n, length), with the token that the decoder starts from.
        reader: reader of the model.

    Returns:
        Arguments as of `decoder_inputs`, (n, length - 1) each.
    """
    ends = _ends(ids[:, 1:], reader).int()
    # An end itself counts as read; what comes behind the first one (count above 1, or padding) does not.
    return decoder_inputs(ids[:, 1:].masked_fill(ends.cumsum(dim=1) > ends, IGNORED), reader)


def _ends(ids: Tensor, reader: Reader) -> Tensor:
    """Marks tokens that end a text, or pad behind its end: bool, of the shape of `ids`."""
    end_ids = [i for i in (reader.tokenizer.eos_token_id, reader.tokenizer.pad_token_id) if i is not None]
    return torch.isin(ids, ids.new_tensor(end_ids))
