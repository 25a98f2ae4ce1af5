"""Is one checkpoint better than another at a task? All on the same examples, with paired intervals and tests.

    python examples/compare_models.py sst2 dev.tsv runs/gates/models/penalty-0.3 runs/ranked/model runs/sst2/model
    python examples/compare_models.py translation test.de,test.en runs/gates/models/penalty-0.3 runs/de-en/model

The first is compared with each of the others: by score intervals and McNemar's exact test where examples are simply
right or wrong, otherwise by a bootstrap over examples with the same draws for all. Compacted checkpoints work as well.
"""

import sys

import pandas as pd

import headlens


def main(name: str, data: str, *models: str) -> None:
    """Evaluate all models and print a row for each."""
    file, _, target = data.partition(",")
    task, source = headlens.open_task(name, file, headlens.DataOptions(target=target or None))
    metric = task.metrics[0]
    options = headlens.EvaluationOptions(replicates=10_000)
    found, heads = [], []
    keys: list[str] = []
    for model in models:
        loaded = headlens.load(model)
        heads.append(sum(site.n_heads for site in headlens.find_sites(loaded.model)))
        found.append(headlens.evaluate(task, loaded, source, options))
        keys = keys or headlens.Examples.of(task, source, loaded).keys
    if any(own.ids != found[0].ids for own in found):
        sys.exit("The models do not read the same examples: some are too long for one of them.")
    draws = headlens.Draws.of(keys, options.replicates)
    rows = []
    for model, own, left in zip(models, found, heads, strict=True):
        value = own.metrics[metric]
        row = {"model": model, "heads": left, metric: value.value, "ci_low": value.ci_low, "ci_high": value.ci_high}
        if own is not found[0]:
            paired = headlens.paired_comparison(task, metric, own.records, draws).of(found[0].records)
            row |= {"first_less_this": paired.delta, "low": paired.low, "high": paired.high, "p_value": paired.p_value}
        rows.append(row)
    print(f"{len(found[0].ids)} examples of {source.name}, {metric}")
    print(pd.DataFrame(rows).to_string(index=False, na_rep="", float_format="{:.4f}".format))


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
