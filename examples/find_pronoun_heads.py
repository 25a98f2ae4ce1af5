"""Which heads look from pronouns back at nouns, as a head that resolves coreference would?

Heads are selected on every other sentence with a pronoun, and evaluated on the rest.

Run: python examples/find_pronoun_heads.py [MODEL [TREEBANK.conllu]]
"""

import sys

import numpy as np
import pandas as pd

import headlens

PRONOUNS = {"he", "she", "it", "they", "him", "her", "them", "his", "its", "their", "himself", "herself", "itself"}
NOUNS = {"NOUN", "PROPN"}


def main() -> None:
    """Print five heads: the weight of third-person pronouns on earlier nouns, beside that of other words."""
    loaded = headlens.load(sys.argv[1] if len(sys.argv) > 1 else "demo")
    corpus = headlens.open_corpus(sys.argv[2] if len(sys.argv) > 2 else "demo")
    examples = [e for e in corpus if PRONOUNS & {word.form.lower() for word in e.source.words}]
    found: dict[tuple[bool, bool], list[np.ndarray]] = {}  # by whether a sentence is told of, and a word is a pronoun
    best: dict[tuple[int, ...], tuple[float, str]] = {}
    for number, example in enumerate(examples):
        maps = headlens.collect_attention(loaded, [example], level="word")[0]
        weights, labels, words = maps.weights["encoder"].numpy(), maps.labels["encoder"][0], iter(example.source.words)
        tags, word = [], next(words, None)
        for label in labels:  # the words in their order, with special tokens among them
            here = word if word is not None and label == word.form else None
            tags.append(here.upos if here else None)
            word = next(words, None) if here else word
        for query, label in enumerate(labels):
            nouns = [key for key in range(query) if tags[key] in NOUNS]
            pronoun = label.lower() in PRONOUNS
            if not nouns or (not pronoun and tags[query] in {"PRON", None}):
                continue
            own = weights[:, :, query, nouns]  # (layers, heads, nouns)
            found.setdefault((number % 2 == 1, pronoun), []).append(own.sum(-1))
            for place, value in np.ndenumerate(own.max(-1)) if pronoun else ():
                told = f"{label} -> {labels[nouns[int(own[place].argmax())]]}: {example.source.text}"
                best[place] = max(best.get(place, (0.0, "")), (float(value), told))
    means = {key: np.mean(rows, axis=0) for key, rows in found.items()}
    ahead = means[False, True] - means[False, False]
    places = [np.unravel_index(flat, ahead.shape) for flat in np.argsort(-ahead, axis=None, kind="stable")[:5]]
    rows = [("encoder.{}.{}".format(*p), means[True, True][p], means[True, False][p], ahead[p]) for p in places]
    print(f"{len(found[True, True])} pronouns and {len(found[True, False])} other words that follow a noun")
    table = pd.DataFrame(rows, columns=["head", "pronouns", "others", "chosen by"])
    print(table.to_string(index=False, float_format="{:.3f}".format))
    for place in places:
        print("encoder.{}.{}: {:.2f} {}".format(*place, *best[place]))


if __name__ == "__main__":
    main()
