"""Do ALBERT's heads, whose layers share their weights, resemble each other more from layer to layer than BERT's?

    python examples/compare_bert_albert.py bert-base-uncased albert-base-v2

Compared is the confidence of head h in one layer with that of head h in the next: Pearson's correlation over heads, the
mean over pairs of layers, with a bootstrap over head numbers. ALBERT's head h has the same weights at every depth, and
is a head of its own at each; BERT's head numbers mean nothing across layers, so its correlations vary about 0.
Without names two random models are made.
"""

import sys

import numpy as np
import pandas as pd

import headlens

DRAWS, ENDS = 2000, (0.025, 0.975)


def resemblance(confidence: np.ndarray) -> np.ndarray:
    """Mean correlation of neighbouring layers, (layers, ..., heads) to (...)."""
    centred = confidence - confidence.mean(-1, keepdims=True)
    unit = centred / np.linalg.norm(centred, axis=-1, keepdims=True)
    return (unit[1:] * unit[:-1]).sum(-1).mean(0)


def main(*names: str) -> None:
    """Classify the heads of both models; print their mean confidence, and how much neighbouring layers are alike."""
    # One update leaves a model that has learned nothing, with a vocabulary of the embedded corpus.
    new = {} if names else {name: headlens.train(f"new:{name}", steps=1) for name in ("bert-small", "albert-small")}
    models = {name: name for name in names} or {name: result.folder / "model" for name, result in new.items()}
    rng, rows, drawn = np.random.default_rng(0), [], []
    for name, model in models.items():
        table = headlens.classify(model, similarity="off", frequency="none").tables["heads"]
        for column, separators in (("confidence", "left out"), ("confidence_all", "counted")):
            heads = table.pivot_table(index="layer", columns="head", values=column).to_numpy()
            drawn.append(resemblance(heads[:, rng.integers(heads.shape[1], size=(DRAWS, heads.shape[1]))]))
            rows.append((name, separators, heads.mean(), resemblance(heads), *np.quantile(drawn[-1], ENDS)))
    columns = ["model", "[SEP]", "confidence", "correlation", "ci_low", "ci_high"]
    print(pd.DataFrame(rows, columns=columns).to_string(index=False, float_format="{:.3f}".format))
    low, high = np.quantile(drawn[2] - drawn[0], ENDS)
    print(f"Difference, [SEP] left out: {rows[2][3] - rows[0][3]:.3f} [{low:.3f}, {high:.3f}]")
    if not names:
        print("These encoders have learned nothing: the numbers only show the path.")


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        sys.exit(__doc__)
    main(*sys.argv[1:])
