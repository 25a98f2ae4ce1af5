"""Which positions does attention need? Learn a mask on a task, save it, and evaluate the model under it.

Run: python examples/learn_a_mask.py [FILE]
"""

import shutil
import sys

import headlens


def main() -> None:
    """Learn a mask of SparseBERT's kind (DAM) for the bundled paraphrases; the model itself is frozen."""
    file = sys.argv[1] if len(sys.argv) > 1 else "mask.safetensors"
    result = headlens.train_dam("demo", "paraphrase", lambdas=[0.01], epochs=2)
    shutil.copy(next(result.folder.glob("masks/**/mask.safetensors")), file)
    heads = result.tables["sparsity"].dropna(subset="head")
    print(heads.sort_values("sparsity").head(5).to_string(index=False))
    columns = ["run", "sparsity", "metric", "value", "ci_low", "ci_high", "delta"]
    print(result.tables["sweep"][columns].to_string(index=False, na_rep="", float_format="{:.3f}".format))
    print(f"The mask of the encoder is in {file}; headlens ablate demo --mask {file} ablates heads under it.")


if __name__ == "__main__":
    main()
