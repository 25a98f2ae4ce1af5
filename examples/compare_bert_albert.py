"""Do ALBERT's heads, whose layers share their weights, resemble each other more from layer to layer than BERT's?

    python examples/compare_bert_albert.py bert-base-uncased albert-base-v2

What `headlens classify` reports on two models: the correlation of the confidence of head h in one layer with that of
head h in the next, and Moran's I over the grid of layers and heads. Without model names, two small random models are
created.
"""

import sys

import headlens


def main(*names: str) -> None:
    """Classify the heads of both models; print their mean confidence, and how smoothly it varies over depth."""
    # One update leaves a model that has learned nothing, with a vocabulary of the bundled corpus.
    new = [] if names else [headlens.train(f"new:{name}", steps=1) for name in ("bert-small", "albert-small")]
    models = [*names] or [str(result.folder / "model") for result in new]
    tables = headlens.classify(models, similarity="off", frequency="none", figures=False).tables
    print(tables["heads"].groupby("model", sort=False)[["confidence", "confidence_all"]].mean().round(3), end="\n\n")
    print(tables["smoothness"].to_string(index=False, float_format="{:.3f}".format, na_rep=""))
    if not names:
        print("These encoders are untrained: the numbers only show that the script works.")


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
