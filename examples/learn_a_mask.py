"""Which positions does attention need? Learn a mask on a task, save it, and measure the model under it.

Run: python examples/learn_a_mask.py [FILE]
"""

import sys

import headlens
from headlens.analyses.dam.learning import MaskLearningOptions, learn_mask
from headlens.analyses.dam.tables import LearnedMask
from headlens.training.hyperparameters import TrainingOptions


def main() -> None:
    """Learn a mask of SparseBERT's kind (DAM) for the embedded paraphrases; the model itself stays as it is."""
    file = sys.argv[1] if len(sys.argv) > 1 else "mask.safetensors"
    loaded = headlens.load("demo")
    task, source = headlens.open_task()
    training_set = headlens.TrainingSet.of_task(loaded, task, source)
    options = MaskLearningOptions(freeze=("all",))
    found = learn_mask(loaded, training_set, 0.01, options, TrainingOptions(epochs=2, batch_tokens=512))
    mask = LearnedMask.of("paraphrases", found.mask)
    mask.file.save(file)
    table = mask.sparsities()
    print(table[table["head"].notna()].sort_values("sparsity").head(5).to_string(index=False))
    print(f"{mask.sparsity:.1%} of the positions of the encoder are masked: {file}")
    before = headlens.evaluate(task, loaded, training_set.held)
    with headlens.attach_edit(loaded.model, headlens.MaskEdit(headlens.AttentionMask.load(file))):
        after = headlens.evaluate(task, loaded, training_set.held)
    for name, own in (("all positions", before), ("under the mask", after)):
        value = own.metrics[task.metrics[0]]
        print(f"{name:14} {task.metrics[0]} {value.value:.3f} [{value.ci_low:.3f}, {value.ci_high:.3f}]")


if __name__ == "__main__":
    main()
