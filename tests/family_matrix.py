"""Every command on a tiny model of each family: what works, and what is refused in words.

`python tests/family_matrix.py` writes the table of docs/models.md anew.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import zoo
from made_tasks import text
from saved import save
from small_vocabulary import minilm, pieces_of, with_pieces
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from zoo import ALBERT, PAIR, ROTARY, T5, TEXT, Entry

from headlens_cli.app import main

ENCODERS = {
    "BERT": Entry("BertForMaskedLM", "BertConfig", "encoder", TEXT),
    "ALBERT": Entry("AlbertForMaskedLM", "AlbertConfig", "encoder", ALBERT),
    "RoBERTa": Entry("RobertaForMaskedLM", "RobertaConfig", "encoder", TEXT),
    "XLM-RoBERTa": Entry("XLMRobertaForMaskedLM", "XLMRobertaConfig", "encoder", TEXT),
    "CamemBERT": Entry("CamembertForMaskedLM", "CamembertConfig", "encoder", TEXT),
    "DistilBERT": Entry("DistilBertForMaskedLM", "DistilBertConfig", "encoder", zoo.ZOO["distilbert"].settings),
    "ELECTRA": Entry("ElectraForMaskedLM", "ElectraConfig", "encoder", TEXT | {"embedding_size": 16}),
    "ERNIE": Entry("ErnieForMaskedLM", "ErnieConfig", "encoder", TEXT),
    "EuroBERT": Entry("EuroBertForMaskedLM", "EuroBertConfig", "encoder", ROTARY),
    "ModernBERT": Entry("ModernBertForMaskedLM", "ModernBertConfig", "encoder", zoo.ZOO["modernbert"].settings),
    "DeBERTa": Entry("DebertaForMaskedLM", "DebertaConfig", "encoder", TEXT),
}
DECODERS = {
    "GPT-2": zoo.ZOO["gpt2"],
    "OPT": zoo.ZOO["opt"],
    "GPT-NeoX": Entry("GPTNeoXForCausalLM", "GPTNeoXConfig", "decoder", TEXT),
    "BioGPT": Entry("BioGptForCausalLM", "BioGptConfig", "decoder", TEXT),
    "Llama": zoo.ZOO["llama"],
    "Mistral": zoo.ZOO["mistral"],
    "Mixtral": Entry("MixtralForCausalLM", "MixtralConfig", "decoder", ROTARY | {"num_local_experts": 2}),
    "Qwen 2": Entry("Qwen2ForCausalLM", "Qwen2Config", "decoder", ROTARY),
    "Qwen 3": zoo.ZOO["qwen3"],
    "Gemma": Entry("GemmaForCausalLM", "GemmaConfig", "decoder", ROTARY),
    "Gemma 2": zoo.ZOO["gemma2"],
    "Gemma 3": Entry("Gemma3ForCausalLM", "Gemma3TextConfig", "decoder", ROTARY | {"query_pre_attn_scalar": 8}),
    "Phi": zoo.ZOO["phi"],
    "Phi-3": Entry("Phi3ForCausalLM", "Phi3Config", "decoder", ROTARY),
    "GPT-OSS": zoo.ZOO["gpt-oss"],
    "OLMo": Entry("OlmoForCausalLM", "OlmoConfig", "decoder", ROTARY),
    "OLMo 2": Entry("Olmo2ForCausalLM", "Olmo2Config", "decoder", ROTARY),
    "Granite": Entry("GraniteForCausalLM", "GraniteConfig", "decoder", ROTARY),
    "Cohere": Entry("CohereForCausalLM", "CohereConfig", "decoder", ROTARY),
    "StarCoder 2": Entry("Starcoder2ForCausalLM", "Starcoder2Config", "decoder", ROTARY),
    "StableLM": Entry("StableLmForCausalLM", "StableLmConfig", "decoder", ROTARY),
    "SmolLM 3": Entry("SmolLM3ForCausalLM", "SmolLM3Config", "decoder", ROTARY),
    "GLM": Entry("GlmForCausalLM", "GlmConfig", "decoder", ROTARY),
    "Nemotron": Entry("NemotronForCausalLM", "NemotronConfig", "decoder", ROTARY),
    "BLOOM": Entry("BloomForCausalLM", "BloomConfig", "decoder", {"hidden_size": 32, "n_layer": 3, "n_head": 4}),
}
PAIRS = {
    "T5": Entry("T5ForConditionalGeneration", "T5Config", "pair", T5),
    "BART": zoo.ZOO["bart"],
    "mBART": Entry("MBartForConditionalGeneration", "MBartConfig", "pair", PAIR),
    "Marian": zoo.ZOO["marian"],
    "Pegasus": zoo.ZOO["pegasus"],
}
FAMILIES: Mapping[str, Entry] = ENCODERS | DECODERS | PAIRS
_FEW = ("--limit", 10, "--replicates", 20)
_STEPS = ("--steps", 2, "--batch-tokens", 200)
_FEW_POINTS = ("--windows", 3, "--groups", 2, "--thresholds", 1, "--methods", "clusters=2", "--methods", "points=1")
_TEXT = ("--corpus", "{corpus}", "{target}")  # the last one for translations alone
_TASKS = {"encoder": "mlm", "decoder": "causal-lm", "pair": "translation"}
COMMANDS: Mapping[str, tuple[object, ...]] = {
    "models check": ("models", "check", "{model}"),
    "attend": ("attend", "{model}", "--text", "The old cat sees a house"),
    "classify": ("classify", "{model}", "--limit", 4),
    "relevance": ("relevance", "{model}", "--limit", 2),
    "ablate": ("ablate", "{model}", "--limit", 10, "--replicates", 20),
    "ablate --prune": (
        "ablate",
        "{model}",
        "--limit",
        10,
        "--replicates",
        20,
        "--prune",
        1,
        "--strategies",
        "importance",
    ),
    "probe": ("probe", "{model}", "--limit", 12, "--replicates", 20),
    "prune": ("prune", "{model}", "--lambdas", 0.05, "--limit", 40, *_STEPS),
    "compact": ("compact", "{model}", "--heads", "{heads}", "--limit", 2, "--data-args", "rounds=2"),
    "compact --stock": ("compact", "{model}", "--heads", "{heads}", "--stock", "--limit", 2, "--data-args", "rounds=2"),
    "masks": ("masks", "{model}", "--task", "{task}", *_TEXT, "--pattern", "window:1", *_STEPS),
    "train": ("train", "{model}", "--task", "{task}", *_TEXT, *_STEPS),
    "train-dam": ("train-dam", "{model}", "--lambdas", 0.1, "--limit", 40, *_STEPS),
    "sparsefinder": ("sparsefinder", "{model}", "--attention", "entmax15", "--limit", 6, "--epochs", 1, *_FEW_POINTS),
}


# What stands around the table in docs/models.md.
BEGIN, END = "<!-- families: tests/family_matrix.py -->", "<!-- end of families -->"
# What belongs to a single model of what a command refuses: its folder, and names of its classes and modules.
_OWN = (
    (r"\S*/model\b", "the model"),
    (r"(?<![.\w])[A-Z]\w*(For[A-Z]\w+|Model|Attention)\b", "the model"),
    (r" \(the model(, the model)*\)", ""),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a command.

    Args:
        code: exit code.
        reason: what it said where it was refused, without names of the model.
        output: all that it said.
    """

    code: int
    reason: str = ""
    output: str = ""


def tokenizer_of_all(folder: Path) -> PreTrainedTokenizerBase:
    """A word-piece tokenizer with few pieces, for models of all families."""
    whole = minilm()
    return with_pieces(whole, set(pieces_of(whole)[:5000]), folder)


def outcomes(
    name: str, folder: Path, tokenizer: PreTrainedTokenizerBase, commands: Sequence[str] = tuple(COMMANDS)
) -> dict[str, Outcome]:
    """Runs commands on a tiny model of a family.

    Args:
        name: of the family.
        folder: an empty one, for the model and the runs.
        tokenizer: for the model.
        commands: of `COMMANDS`.
    """
    entry = FAMILIES[name]
    special = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.cls_token_id}
    special |= {"eos_token_id": tokenizer.sep_token_id}
    start = {"decoder_start_token_id": tokenizer.cls_token_id} if entry.kind == "pair" else {}
    longest = {"max_position_embeddings": 150, "n_positions": 150}
    # As in many checkpoints more rows than tokens: transformers adds some to tokenizers of its Qwen2Tokenizer.
    model = entry.build(vocab_size=len(tokenizer) + 8, **longest, **special, **start)
    stack = "decoder" if entry.kind == "decoder" else "encoder"
    # Heads 0 and 1 share their keys where heads do, and all layers their weights in ALBERT.
    heads = ",".join(f"{stack}.{layer}.{head}" for layer in range(_layers(model)) for head in (0, 1))
    words = {"model": save(model, folder / "model", tokenizer), "heads": heads}
    words |= {"task": _TASKS[entry.kind], "corpus": str(folder / "corpus.txt"), "target": ""}
    Path(words["corpus"]).write_text("\n".join(text(n) for n in range(30)), encoding="utf-8")
    if entry.kind == "pair":
        words["target"] = f"--target={folder / 'target.txt'}"
        (folder / "target.txt").write_text("\n".join(text(n, 3) for n in range(30)), encoding="utf-8")
    found = {}
    for number, command in enumerate(commands):
        typed = [str(word).format(**words) for word in COMMANDS[command]]
        place = [] if typed[0] == "models" else ["--out", str(folder / f"run{number}")]
        quiet = [] if typed[0] in ("models", "compact") else ["--no-figures"]
        found[command] = _run([*filter(None, typed), *place, *quiet])
    return found


def _layers(model: PreTrainedModel) -> int:
    return int(getattr(model.config, "num_hidden_layers", 3))


def _run(words: list[str]) -> Outcome:
    shown, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["headlens", *words]),
        mock.patch.dict(os.environ, {"COLUMNS": "1000"}),
        contextlib.redirect_stdout(shown),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    said = shown.getvalue() + errors.getvalue()
    reason = next((line for line in said.splitlines() if line.startswith("Error: ")), "").removeprefix("Error: ")
    for pattern, word in _OWN:
        reason = re.sub(pattern, word, reason)
    return Outcome(code, reason[:1].upper() + reason[1:] if code else "", said)


def matrix(found: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The outcomes of families as a table in Markdown, with what was refused below it."""
    reasons = list(dict.fromkeys(o.reason for row in found.values() for o in row.values() if o.code))
    lines = ["| | " + " | ".join(f"`{command}`" for command in COMMANDS) + " |", "|---" * (len(COMMANDS) + 1) + "|"]
    for name, row in found.items():
        cells = [f"({reasons.index(row[c].reason) + 1})" if row[c].code else "yes" for c in COMMANDS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    refused = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", "Refused, in the words of the program:", "", *refused])


def every_outcome() -> Iterator[tuple[str, dict[str, Outcome]]]:
    """Runs all commands on all families, which takes minutes."""
    with tempfile.TemporaryDirectory() as place:
        tokenizer = tokenizer_of_all(Path(place) / "tokenizer")
        for number, name in enumerate(FAMILIES):
            (folder := Path(place) / str(number)).mkdir()
            yield name, outcomes(name, folder, tokenizer)
            shutil.rmtree(folder)


if __name__ == "__main__":
    table = matrix(dict(every_outcome()))
    page = Path(__file__).resolve().parents[1] / "docs" / "models.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")
