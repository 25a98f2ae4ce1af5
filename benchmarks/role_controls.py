"""Which roles does a head get that cannot know anything? Prints how many heads hold which role.

    OMP_NUM_THREADS=1 python benchmarks/role_controls.py

MiniLM on the bundled treebank as it is; a MiniLM of random weights; MiniLM on the sentences with their words in random
order, each with its tree. A head may hold several roles. `offset` is the accuracy of the best fixed offset, the mean
over relations and directions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pandas as pd
import torch
from transformers import AutoModel

import headlens
from headlens.corpora.sentence import join_tokens

SEED = 0


class ShuffledWords:
    """The bundled treebank, every sentence's words in random order."""

    name = "shuffled words"

    def __iter__(self) -> Iterator[headlens.Example]:
        """Draws the same order every time."""
        rng = random.Random(SEED)
        return (headlens.Example(shuffled(example.source, rng)) for example in headlens.open_corpus())


def shuffled(sentence: headlens.Sentence, rng: random.Random) -> headlens.Sentence:
    """The words in random order, with a space between them; every word keeps its head."""
    order = rng.sample(range(len(sentence.words)), len(sentence.words))
    place = {old: new for new, old in enumerate(order)}
    words = [sentence.words[old] for old in order]
    text, spans = join_tokens((word.form, (word.form,), True) for word in words)
    moved = (
        replace(word, start=start, end=end, head=place.get(word.head, word.head))
        for word, (start, end) in zip(words, spans, strict=True)
    )
    return headlens.Sentence(text, tuple(moved), sentence.id)


def held(result: headlens.Result) -> pd.Series:
    """How many heads hold each role, without its relation or offset; and the mean accuracy of fixed offsets."""
    roles = result.tables["heads"]["roles"].str.replace(r"\([^)]*\)", "", regex=True).str.split("; ")
    counts = roles.map(set).explode().replace("", "none").value_counts()
    offsets = result.tables["syntax"].drop_duplicates(["relation", "direction"])["baseline"]
    return pd.concat([counts, pd.Series({"offset": offsets.mean()})])


def main() -> None:
    loaded = headlens.load("demo")
    torch.manual_seed(SEED)
    random_weights = (AutoModel.from_config(loaded.model.config), loaded.tokenizer)
    runs = {
        "as it is": (loaded, "demo"),
        "random weights": (random_weights, "demo"),
        "shuffled words": (loaded, ShuffledWords()),
    }
    found = {
        name: held(headlens.classify(model, corpus, similarity="off", figures=False))
        for name, (model, corpus) in runs.items()
    }
    print(pd.DataFrame(found).fillna(0).to_string(float_format="{:.3g}".format))


if __name__ == "__main__":
    main()
