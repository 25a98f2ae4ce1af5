"""Which heads look from pronouns back at nouns, as a head that resolves coreference would?

Run: python examples/find_pronoun_heads.py [MODEL [TREEBANK.conllu]]
"""

import sys

import numpy as np
import pandas as pd

import headlens

PRONOUNS = {"he", "she", "it", "they", "him", "her", "them", "his", "its", "their", "himself", "herself", "itself"}
NOUNS = {"NOUN", "PROPN"}
LEFT_OUT = {"PRON", None}


def main() -> None:
    """Print five heads: the weight of third-person pronouns on earlier nouns, beside that of other words."""
    loaded = headlens.load(sys.argv[1] if len(sys.argv) > 1 else "demo")
    found: dict[str, list[np.ndarray]] = {"pronouns": [], "others": []}
    best: dict[tuple[int, int], tuple[float, str]] = {}
    for example in headlens.open_corpus(sys.argv[2] if len(sys.argv) > 2 else "demo"):
        tags = {word.form: word.upos for word in example.source.words}
        if not PRONOUNS & {form.lower() for form in tags}:
            continue
        maps = headlens.attend(loaded, [example], level="word")[0]
        weights, words = maps.weights["encoder"].numpy(), maps.labels["encoder"][0]
        for query, word in enumerate(words):
            nouns = [key for key in range(query) if tags.get(words[key]) in NOUNS]
            pronoun = word.lower() in PRONOUNS
            if not nouns or (not pronoun and tags.get(word) in LEFT_OUT):
                continue
            own = weights[:, :, query, nouns]  # (layers, heads, nouns)
            found["pronouns" if pronoun else "others"].append(own.sum(-1))
            if pronoun:
                for place, value in np.ndenumerate(own.max(-1)):
                    noun = words[nouns[int(own[place].argmax())]]
                    told = f"{word} -> {noun}: {example.source.text}"
                    best[place] = max(best.get(place, (0.0, "")), (float(value), told))
    means = {kind: np.mean(rows, axis=0) for kind, rows in found.items()}
    rows = [("encoder", *place, value, means["others"][place]) for place, value in np.ndenumerate(means["pronouns"])]
    table = pd.DataFrame(rows, columns=["stack", "layer", "head", "pronouns", "others"])
    table = table.assign(more=table["pronouns"] - table["others"]).sort_values("more", ascending=False).head(5)
    print(f"{len(found['pronouns'])} pronouns and {len(found['others'])} other words behind a noun")
    print(table.to_string(index=False, float_format="{:.3f}".format))
    for place in zip(table["layer"], table["head"], strict=True):
        print("encoder.{}.{}: {:.2f} {}".format(*place, *best[place]))


if __name__ == "__main__":
    main()
