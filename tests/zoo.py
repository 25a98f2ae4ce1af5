"""Tiny models with random weights, one per architecture, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.t5 import modeling_t5

from headlens.attention.edits_and_observers import BatchTokens, Tokens
from headlens.attention.sites import Site

Kind = Literal["encoder", "decoder", "pair", "cross_decoder", "image", "audio"]
VOCABULARY, HIDDEN, PAD = 60, 32, 1
LENGTHS, TARGET_LENGTHS = (7, 4, 5), (6, 3, 5)
LAYERS = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": HIDDEN, "intermediate_size": 40}
TEXT = LAYERS | {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 40,
    "pad_token_id": PAD,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
ROTARY = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
PAIR = {
    "vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 40,
    "pad_token_id": PAD,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5 = {"vocab_size": VOCABULARY, "d_model": HIDDEN, "d_kv": 8, "d_ff": 40, "num_layers": 3, "num_decoder_layers": 2}
T5 |= {"num_heads": 4, "pad_token_id": PAD, "eos_token_id": 3, "decoder_start_token_id": 2}
ALBERT = TEXT | {"embedding_size": 16, "num_hidden_layers": 4}
WHISPER = PAIR | {"num_mel_bins": 8, "max_source_positions": 6, "max_target_positions": 40, "suppress_tokens": None}
# Where the output projection is, seen from the attention module.
PROJECTIONS = ("o_proj", "out_proj", "o", "c_proj", "dense", "out_lin", "Wo", "../output.dense", "../o_proj")


@dataclass(frozen=True)
class Entry:
    """One architecture: the classes of model and configuration, what it reads, and the settings."""

    model: str
    config: str
    kind: Kind
    settings: dict[str, Any]

    @property
    def stacks(self) -> list[str]:
        """The stacks it should have."""
        return {
            "encoder": ["encoder"],
            "image": ["encoder"],
            "decoder": ["decoder"],
            "cross_decoder": ["decoder", "cross"],
            "pair": ["encoder", "decoder", "cross"],
            "audio": ["encoder", "decoder", "cross"],
        }[self.kind]

    def build(self, kernel: str = "eager", seed: int = 0, **settings: object) -> PreTrainedModel:
        """A model in eval mode; the same seed gives the same weights."""
        config = getattr(transformers, self.config)(**(self.settings | settings))
        return randomized(getattr(transformers, self.model)._from_config(config, attn_implementation=kernel), seed)


def randomized(model: PreTrainedModel, seed: int = 0) -> PreTrainedModel:
    """The model with weights so large that attention is far from uniform, in eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(noise * 0.25)
            else:
                parameter.add_(noise * 0.1)
    return model.eval()


def albert(**settings: int) -> Entry:
    return Entry("AlbertModel", "AlbertConfig", "encoder", ALBERT | settings)


def encoder_decoder(kernel: str = "eager", decoder_kernel: str | None = None) -> PreTrainedModel:
    """BERT reading, BERT writing."""
    encoder = ZOO["bert"].build(kernel)
    decoder = Entry("BertLMHeadModel", "BertConfig", "decoder", ZOO["bert-cross-decoder"].settings)
    parts = {"encoder": encoder, "decoder": decoder.build(decoder_kernel or kernel)}
    model = transformers.EncoderDecoderModel(**parts)
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, PAD
    return randomized(model)


@dataclass(frozen=True)
class Composite(Entry):
    """An architecture that is put together from models."""

    make: Callable[[str], PreTrainedModel] = encoder_decoder

    def build(self, kernel: str = "eager", seed: int = 0, **settings: object) -> PreTrainedModel:
        return randomized(self.make(kernel), seed)


ZOO: dict[str, Entry] = {
    "bert": Entry("BertModel", "BertConfig", "encoder", TEXT),
    "bert-classifier": Entry("BertForSequenceClassification", "BertConfig", "encoder", TEXT),
    "bert-mlm": Entry("BertForMaskedLM", "BertConfig", "encoder", TEXT),
    "bert-cross-decoder": Entry(
        "BertLMHeadModel", "BertConfig", "cross_decoder", TEXT | {"is_decoder": True, "add_cross_attention": True}
    ),
    "albert": albert(),
    "albert-groups": albert(num_hidden_groups=2),
    "albert-inner": albert(num_hidden_groups=2, inner_group_num=2),
    "albert-unshared": albert(num_hidden_groups=4),
    "albert-mlm": Entry("AlbertForMaskedLM", "AlbertConfig", "encoder", ALBERT),
    "roberta": Entry("RobertaModel", "RobertaConfig", "encoder", TEXT),
    "xlm-roberta": Entry("XLMRobertaForTokenClassification", "XLMRobertaConfig", "encoder", TEXT),
    "camembert": Entry("CamembertForQuestionAnswering", "CamembertConfig", "encoder", TEXT),
    "distilbert": Entry(
        "DistilBertModel",
        "DistilBertConfig",
        "encoder",
        {"vocab_size": VOCABULARY, "dim": HIDDEN, "n_layers": 3, "n_heads": 4, "hidden_dim": 40, "pad_token_id": PAD},
    ),
    "electra": Entry("ElectraForPreTraining", "ElectraConfig", "encoder", TEXT | {"embedding_size": 16}),
    "modernbert": Entry(
        "ModernBertModel",
        "ModernBertConfig",
        "encoder",
        TEXT | {"local_attention": 4, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
    ),
    "gpt2": Entry(
        "GPT2LMHeadModel",
        "GPT2Config",
        "decoder",
        {"vocab_size": VOCABULARY, "n_embd": HIDDEN, "n_layer": 3, "n_head": 4, "n_positions": 40}
        | {"pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": 3},
    ),
    "opt": Entry(
        "OPTForCausalLM", "OPTConfig", "decoder", TEXT | {"ffn_dim": 40, "word_embed_proj_dim": HIDDEN, "dropout": 0.1}
    ),
    "llama": Entry("LlamaForCausalLM", "LlamaConfig", "decoder", ROTARY),
    "mistral": Entry("MistralForCausalLM", "MistralConfig", "decoder", ROTARY | {"sliding_window": 3}),
    "qwen2": Entry("Qwen2Model", "Qwen2Config", "decoder", ROTARY),
    "qwen3": Entry("Qwen3ForCausalLM", "Qwen3Config", "decoder", ROTARY),
    "phi": Entry("PhiForCausalLM", "PhiConfig", "decoder", TEXT | {"partial_rotary_factor": 0.5}),
    "gemma2": Entry(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        "decoder",
        ROTARY | {"attn_logit_softcapping": 2.0, "sliding_window": 3, "query_pre_attn_scalar": 8},
    ),
    "gpt-oss": Entry(
        "GptOssForCausalLM",
        "GptOssConfig",
        "decoder",
        ROTARY | {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 3},
    ),
    "t5": Entry("T5ForConditionalGeneration", "T5Config", "pair", T5),
    "bart": Entry("BartForConditionalGeneration", "BartConfig", "pair", PAIR),
    "mbart": Entry("MBartModel", "MBartConfig", "pair", PAIR),
    "marian": Entry("MarianMTModel", "MarianConfig", "pair", PAIR | {"bad_words_ids": None}),
    "m2m100": Entry("M2M100ForConditionalGeneration", "M2M100Config", "pair", PAIR),
    "pegasus": Entry("PegasusForConditionalGeneration", "PegasusConfig", "pair", PAIR),
    "bert-to-bert": Composite("EncoderDecoderModel", "EncoderDecoderConfig", "pair", {}),
    "vit": Entry("ViTModel", "ViTConfig", "image", LAYERS | {"image_size": 8, "patch_size": 4}),
    "whisper": Entry("WhisperForConditionalGeneration", "WhisperConfig", "audio", WHISPER),
}
if not hasattr(modeling_t5, "ALL_ATTENTION_FUNCTIONS"):
    # T5 computed its attention itself before transformers 5.15.
    del ZOO["t5"]
# One of each kind of model; the default tier of tests tries these, the slow tier all.
REPRESENTATIVES = ("bert", "albert", "bert-cross-decoder", "gpt2", "llama", "gemma2", "marian", "vit", "whisper")
SHARED = [n for n in ZOO if n in ("albert", "albert-groups", "albert-inner", "albert-mlm")]
# Their attention is more than a softmax of scaled scores, which another normaliser cannot stand in for.
MORE_THAN_SOFTMAX = ["gemma2", "gpt-oss"]


def ids(lengths: Sequence[int], seed: int) -> Tensor:
    """Random tokens, padded on the right: (sentences, longest)."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(5, VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    return tokens.masked_fill(real(lengths) == 0, PAD)


def real(lengths: Sequence[int]) -> Tensor:
    """1 for tokens, 0 for padding: (sentences, longest)."""
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


def padded(entry: Entry) -> dict[str, Any]:
    """Inputs of three sentences of different lengths; pictures and sounds are of one length."""
    generator = torch.Generator().manual_seed(5)
    source, target = ids(LENGTHS, 1), ids(TARGET_LENGTHS, 2)
    writing = {"decoder_input_ids": target, "decoder_attention_mask": real(TARGET_LENGTHS)}
    inputs: dict[str, Any] = {
        "encoder": {"input_ids": source, "attention_mask": real(LENGTHS)},
        "decoder": {"input_ids": source, "attention_mask": real(LENGTHS), "use_cache": False},
        "cross_decoder": {
            "input_ids": target,
            "attention_mask": real(TARGET_LENGTHS),
            "encoder_hidden_states": torch.randn(3, max(LENGTHS), HIDDEN, generator=generator),
            "encoder_attention_mask": real(LENGTHS),
            "use_cache": False,
        },
        "pair": {"input_ids": source, "attention_mask": real(LENGTHS), **writing, "use_cache": False},
        "image": {"pixel_values": torch.randn(3, 3, 8, 8, generator=generator)},
        "audio": {"input_features": torch.randn(3, 8, 12, generator=generator), **writing, "use_cache": False},
    }[entry.kind]
    return inputs


def unpadded(entry: Entry) -> list[dict[str, Any]]:
    """The same sentences one at a time, without padding and without masks."""
    inputs = padded(entry)
    rows = []
    for i, (source, target) in enumerate(zip(LENGTHS, TARGET_LENGTHS, strict=True)):
        own, other = (target, source) if entry.kind == "cross_decoder" else (source, target)
        lengths = {"input_ids": own, "decoder_input_ids": target, "encoder_hidden_states": other}
        row = {k: v[i : i + 1, : lengths.get(k)] if isinstance(v, Tensor) else v for k, v in inputs.items()}
        rows.append({k: v for k, v in row.items() if not k.endswith("attention_mask")})
    return rows


def output_lengths(entry: Entry) -> tuple[int, ...]:
    """How many positions of the first output belong to each sentence."""
    return TARGET_LENGTHS if entry.kind in ("pair", "audio", "cross_decoder") else LENGTHS


def tokens(lengths: Sequence[int]) -> Tokens:
    """A description in which the first token is [CLS], the last [SEP] and every other one a word."""
    kept = real(lengths).bool()
    position = torch.arange(max(lengths)).expand(kept.shape)
    cls = position == 0
    sep = position == torch.tensor(lengths)[:, None] - 1
    special = cls | sep | ~kept
    none = torch.zeros_like(kept)
    words = torch.tensor(lengths) - 2
    pieces = real([max(1, n - 2) for n in lengths])
    return Tokens(kept, special, cls, sep, none, none, none, (position - 1).masked_fill(special, -1), words, pieces)


def batch_tokens(entry: Entry) -> BatchTokens:
    """The tokens of `padded`."""
    source, target = tokens(LENGTHS), tokens(TARGET_LENGTHS)
    return {
        "encoder": BatchTokens(encoder=source),
        "decoder": BatchTokens(decoder=source),
        "cross_decoder": BatchTokens(encoder=source, decoder=target),
        "pair": BatchTokens(encoder=source, decoder=target),
        "image": BatchTokens(),
        "audio": BatchTokens(decoder=target),
    }[entry.kind]


def attentions(entry: Entry, outputs: Any, stack: str) -> tuple[Tensor, ...]:
    """What the model itself returned as the weights of a stack, by layer."""
    if entry.kind in ("pair", "audio"):
        weights: tuple[Tensor, ...] = outputs[f"{stack}_attentions"]
    else:
        weights = outputs.cross_attentions if stack == "cross" else outputs.attentions
    return weights


def projection(model: nn.Module, site: Site) -> nn.Module:
    """The output projection behind a site."""
    parent = site.module.rpartition(".")[0]
    for path in PROJECTIONS:
        name = f"{parent}.{path[3:]}" if path.startswith("../") else f"{site.module}.{path}"
        try:
            return model.get_submodule(name)
        except AttributeError:
            continue
    raise LookupError(f"no output projection found for {site.module}")


def without_head(layer: nn.Module, head: int, n_heads: int) -> None:
    """Zero the rows of an output projection that read one head."""
    with torch.no_grad():
        # (inputs, outputs) in GPT-2's Conv1D, (outputs, inputs) in Linear
        weight = layer.weight if type(layer).__name__ == "Conv1D" else layer.weight.T
        size = weight.shape[0] // n_heads
        weight[head * size : (head + 1) * size] = 0
