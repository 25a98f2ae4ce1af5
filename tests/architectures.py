"""Forty families of models as tiny checkpoints, and every command run on each: what works, and what is refused how.

python tests/architectures.py            # writes headlens/attention/commands_by_family.json, in some minutes
python tests/architectures.py bert gpt2  # prints what these families do
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headlens.attention.supported_models import COMMANDS_FILE
from headlens.corpora.sources import open_corpus
from headlens.options import DEMO
from headlens_cli.app import main

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 40}
TOKENS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3}
TEXT: dict[str, Any] = LAYERS | TOKENS | {"max_position_embeddings": 80}
GROUPED: dict[str, Any] = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
EXPERTS: dict[str, Any] = GROUPED | {"num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1}
PAIR: dict[str, Any] = TOKENS | {
    **{f"{side}_layers": 2 for side in ("encoder", "decoder")},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 40 for side in ("encoder", "decoder")},
    "d_model": 32,
    "max_position_embeddings": 80,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "forced_bos_token_id": None,
}
_SUBJECTS = ("the cat", "a dog", "my teacher", "the old man", "no bird")
_VERBS = ("sees", "likes", "finds", "follows")
_OBJECTS = ("the house", "a red car", "two apples", "the river")
SENTENCES = [" ".join(words) for words in product(_SUBJECTS, _VERBS, _OBJECTS)]


@dataclass(frozen=True)
class Family:
    """A family of models.

    Args:
        name: as people call it.
        prefix: of its classes in transformers.
        kind: encoder, decoder or pair (encoder-decoder).
        settings: of a tiny one.
        head: what follows the prefix in the name of the class.
        config: of the configuration, where it begins otherwise.
    """

    name: str
    prefix: str
    kind: str
    settings: dict[str, Any]
    head: str = ""
    config: str = ""

    def build(self, vocabulary: int) -> PreTrainedModel:
        """A model with random weights that are large enough for attention to differ from uniform."""
        heads = {"encoder": "ForMaskedLM", "decoder": "ForCausalLM", "pair": "ForConditionalGeneration"}
        made = getattr(transformers, f"{self.config or self.prefix}Config")(
            **(self.settings | {"vocab_size": vocabulary})
        )
        torch.manual_seed(0)
        model: PreTrainedModel = getattr(transformers, self.prefix + (self.head or heads[self.kind]))(made)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        return model.eval()


_GPT2 = TOKENS | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 80}
_T5 = TOKENS | {"d_model": 32, "d_kv": 8, "d_ff": 40, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 2}
_DISTIL = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "pad_token_id": 1, "max_position_embeddings": 80}
_MLA = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
_MLA |= {"first_k_dense_replace": 2, "n_routed_experts": 2, "num_key_value_heads": 4}
FAMILIES = (
    Family("BERT", "Bert", "encoder", TEXT),
    Family("ALBERT", "Albert", "encoder", TEXT | {"embedding_size": 16}),
    Family("RoBERTa", "Roberta", "encoder", TEXT),
    Family("XLM-RoBERTa", "XLMRoberta", "encoder", TEXT),
    Family("CamemBERT", "Camembert", "encoder", TEXT),
    Family("DistilBERT", "DistilBert", "encoder", _DISTIL),
    Family("ELECTRA", "Electra", "encoder", TEXT | {"embedding_size": 16}),
    Family("ModernBERT", "ModernBert", "encoder", TEXT | {"local_attention": 40, "cls_token_id": 2, "sep_token_id": 3}),
    Family("ERNIE", "Ernie", "encoder", TEXT),
    Family("EuroBERT", "EuroBert", "encoder", GROUPED),
    Family("GPT-2", "GPT2", "decoder", _GPT2, "LMHeadModel"),
    Family("OPT", "OPT", "decoder", TEXT | {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    Family("BioGPT", "BioGpt", "decoder", TEXT),
    Family("GPT-NeoX", "GPTNeoX", "decoder", TEXT),
    Family("Llama", "Llama", "decoder", GROUPED),
    Family("Mistral", "Mistral", "decoder", GROUPED | {"sliding_window": 16}),
    Family("Mixtral", "Mixtral", "decoder", EXPERTS),
    Family("Qwen 2", "Qwen2", "decoder", GROUPED),
    Family("Qwen 3", "Qwen3", "decoder", GROUPED),
    Family("Qwen 3 MoE", "Qwen3Moe", "decoder", EXPERTS | {"moe_intermediate_size": 16}),
    Family("Gemma 2", "Gemma2", "decoder", GROUPED | {"query_pre_attn_scalar": 8, "sliding_window": 16}),
    Family("Gemma 3", "Gemma3", "decoder", GROUPED | {"sliding_window": 16}, config="Gemma3Text"),
    Family("Phi", "Phi", "decoder", TEXT | {"partial_rotary_factor": 0.5}),
    Family("Phi-3", "Phi3", "decoder", GROUPED),
    Family("OLMo", "Olmo", "decoder", GROUPED),
    Family("OLMo 2", "Olmo2", "decoder", GROUPED),
    Family("OLMoE", "Olmoe", "decoder", EXPERTS),
    Family("SmolLM3", "SmolLM3", "decoder", GROUPED),
    Family("StableLM", "StableLm", "decoder", GROUPED),
    Family("Cohere", "Cohere", "decoder", GROUPED),
    Family("Granite", "Granite", "decoder", GROUPED),
    Family("StarCoder 2", "Starcoder2", "decoder", GROUPED),
    Family("GPT-OSS", "GptOss", "decoder", EXPERTS | {"sliding_window": 16}),
    Family("DeepSeek V3", "DeepseekV3", "decoder", TEXT | _MLA),
    Family("T5", "T5", "pair", _T5),
    Family("BART", "Bart", "pair", PAIR),
    Family("mBART", "MBart", "pair", PAIR),
    Family("Marian", "Marian", "pair", PAIR | {"bad_words_ids": None}, "MTModel"),
    Family("M2M100, NLLB", "M2M100", "pair", PAIR),
    Family("Pegasus", "Pegasus", "pair", PAIR),
    Family("DeBERTa v2", "DebertaV2", "encoder", TEXT),
    Family("XLNet", "XLNet", "decoder", {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 40}, "LMHeadModel"),
    Family("GPT-J", "GPTJ", "decoder", _GPT2 | {"rotary_dim": 4}),
    Family("BLOOM", "Bloom", "decoder", TOKENS | {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    Family("Falcon", "Falcon", "decoder", TEXT),
)
_TINY = ("--steps", "2", "--batch-tokens", "128")
_GATES = ("--target-heads", "1", "--law", "most-runs=1")


def commands_of(family: Family, model: str) -> dict[str, tuple[str, ...]]:
    """The commands as somebody would type them for such a model, each as short as can be.

    Args:
        family: of the model.
        model: its folder.
    """
    pair, decoder = family.kind == "pair", family.kind == "decoder"
    corpus = ("--corpus", "a.txt", *(("--target", "b.txt") if pair else ()))
    task = "translation" if pair else "causal-lm" if decoder else "mlm"
    data = ("--task", "translation-loss", "--data", "a.txt", "--target", "b.txt") if pair else ("--data", "a.txt")
    data = data if pair or decoder else ("--task", "mlm", "--data", "a.txt")
    stack = "decoder" if decoder else "encoder"
    # Of models with grouped keys a head of each group, whose numbers are then still equal.
    grouped = "num_key_value_heads" in family.settings
    heads = f"{stack}.1.0,{stack}.1.2" if grouped else f"{stack}.1.0"
    heads = "encoder.0.0,encoder.1.0" if family.name == "ALBERT" else heads
    written = ("--target-text", "a dog sees the river") if pair else ()
    few = ("--methods", "windows=0,3,groups=2,thresholds=1,clusters=2", "--epochs", "1")
    return {
        "classify": ("classify", model, *corpus),
        "relevance": ("relevance", model, *corpus),
        "probe": ("probe", model, "--limit", "14", "--replicates", "100"),
        "attend": ("attend", model, "the cat likes a red car", *written),
        "ablate": ("ablate", model, *data, "--replicates", "100"),
        "ablate --prune": ("ablate", model, *data, "--replicates", "100", "--prune", "1", "--strategies", "ranked"),
        "prune": ("prune", model, "--task", task, *corpus, *_TINY, *_GATES),
        "compact": ("compact", model, "--heads", heads, *corpus, "--data-args", "rounds=2"),
        "compact --stock": ("compact", model, "--heads", heads, *corpus, "--data-args", "rounds=2", "--stock"),
        "masks": ("masks", model, "--task", task, *corpus, "--pattern", "window:1", "--no-controls", *_TINY),
        "train-dam": ("train-dam", model, "--task", task, *corpus, "--lambdas", "1", *_TINY),
        "sparsefinder": ("sparsefinder", model, *corpus, "--attention", "entmax15", "--task", "none", *few),
        "train": ("train", model, "--task", task, *corpus, *_TINY),
    }


def tokenizer_of(kind: str) -> PreTrainedTokenizerBase:
    """A tokenizer of the kind that such models have: words for encoders, bytes for decoders, `</s>` for pairs."""
    special = ["<unk>", "<pad>", "<s>", "</s>", "<mask>"]
    named = dict(zip(("unk_token", "pad_token", "bos_token", "eos_token", "mask_token"), special, strict=True))
    made = Tokenizer(models.BPE() if kind == "decoder" else models.WordLevel(unk_token="<unk>"))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.WordLevelTrainer(special_tokens=special, show_progress=False)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if kind == "decoder":
        made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=alphabet, special_tokens=special, show_progress=False
        )
    made.train_from_iterator([*SENTENCES, *_treebank()], trainer)
    ends = [("<s>", 2), ("</s>", 3)]
    if kind != "decoder":
        template = "<s> $A </s>" if kind == "encoder" else "$A </s>"
        made.post_processor = processors.TemplateProcessing(single=template, special_tokens=ends)
    if kind != "encoder":
        del named["mask_token"]
    more = {"cls_token": "<s>", "sep_token": "</s>"} if kind == "encoder" else {}
    return PreTrainedTokenizerFast(tokenizer_object=made, **named, **more)


def _treebank() -> Iterable[str]:
    """The sentences of the bundled treebank that `probe` reads here, so that their words are known."""
    return (example.source.text for example in islice(open_corpus(DEMO), 20))


def checkpoint(family: Family, folder: Path) -> str:
    """Saves a tiny model of a family with its tokenizer; returns its name."""
    tokenizer = tokenizer_of(family.kind)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    family.build(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def refusal(words: Iterable[str]) -> str:
    """Runs a command: empty if it worked, else the first line that it was refused with.

    Raises:
        RuntimeError: where it failed in another way.
    """
    argv, out, err = sys.argv, io.StringIO(), io.StringIO()
    sys.argv = ["headlens", *words, "--no-figures", "--device", "cpu", "--offline", "--quiet"]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
            code: object = 0
            try:
                main()
            except SystemExit as end:
                code = end.code
    finally:
        sys.argv = argv
    if code in (0, None):
        return ""
    lines = [line for line in err.getvalue().splitlines() if line.strip() and not line.startswith("warning")]
    if code != 2:
        raise RuntimeError(f"{' '.join(words)} ended with {code}: {' '.join(lines)[-800:]}")
    return next(line.removeprefix("Error: ") for line in lines if line.startswith("Error: "))


def outcomes(family: Family, names: Iterable[str] | None = None) -> dict[str, str]:
    """What becomes of the commands on a family, in a folder of their own: see `refusal`.

    Args:
        family: of the model.
        names: of the commands; None for all.
    """
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            Path("a.txt").write_text("\n".join(SENTENCES[:48]), encoding="utf-8")
            Path("b.txt").write_text("\n".join(SENTENCES[-48:]), encoding="utf-8")
            commands = commands_of(family, checkpoint(family, Path("model")))
            return {name: refusal(commands[name]) for name in (names or commands)}
        finally:
            os.chdir(before)


if __name__ == "__main__":
    chosen = [f for f in FAMILIES if f.prefix.lower() in map(str.lower, sys.argv[1:])] or FAMILIES
    table = {}
    for one in chosen:
        table[one.name] = outcomes(one)
        refused = {name: text for name, text in table[one.name].items() if text}
        print(one.name, "all work" if not refused else json.dumps(refused, indent=2, ensure_ascii=False), flush=True)
    if chosen is FAMILIES:
        COMMANDS_FILE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
