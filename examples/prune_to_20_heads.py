"""Prune a model to the 20 heads that a task needs most, and save it: smaller, faster, and loadable again.

Run: python examples/prune_to_20_heads.py [FOLDER]
"""

import sys
from pathlib import Path

import headlens
from headlens.interventions.compacting import save_compacted
from headlens.tasks.example_sources import gather, split

LEFT = 20


def main() -> None:
    """Rank heads on half of the embedded paraphrases, and measure the smaller model on the other half."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "minilm-20-heads")
    loaded = headlens.load("demo")
    task, source = headlens.open_task()
    given = gather(source)
    even, odd = split(given, [range(0, len(given.examples), 2), range(1, len(given.examples), 2)])
    ranked = headlens.ablate_heads(loaded, headlens.Examples.of(task, even, loaded)).table
    ranked = ranked.sort_values("delta", ascending=False, kind="stable")  # those without which nothing is lost first
    least = [headlens.Head(*key) for key in ranked[["stack", "layer", "head"]].itertuples(index=False)]
    removed = least[: len(least) - LEFT]
    before = headlens.evaluate(task, loaded, odd).metrics[task.metrics[0]]
    sizes = [loaded.n_parameters]
    headlens.compact_model(loaded.model, removed)
    save_compacted(loaded.model, folder)
    loaded.tokenizer.save_pretrained(folder)
    smaller = headlens.load(str(folder))
    after = headlens.evaluate(task, smaller, odd).metrics[task.metrics[0]]
    for heads, size, own in zip((len(least), LEFT), (*sizes, smaller.n_parameters), (before, after), strict=True):
        interval = f"[{own.ci_low:.3f}, {own.ci_high:.3f}]"
        print(f"{heads} heads: {size / 1e6:.1f} M parameters, {task.metrics[0]} {own.value:.3f} {interval}")
    print("left:", " ".join(map(str, sorted(least[-LEFT:]))))


if __name__ == "__main__":
    main()
