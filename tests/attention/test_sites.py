import pytest
import torch
import transformers
import zoo
from tiers import rest_slow
from torch import nn

from headlens.attention.session import AttentionSession
from headlens.attention.sites import dispatches, eager_function, find_sites, is_decoder_only
from headlens.errors import UnsupportedModelError
from headlens.heads import Head
from headlens.weights.head_slicing import shrink

TINY = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


@pytest.mark.parametrize("name", rest_slow(zoo.ZOO, zoo.REPRESENTATIVES))
def test_every_zoo_model_has_the_stacks_it_should_have_numbered_from_0(name: str) -> None:
    entry = zoo.ZOO[name]
    sites = find_sites(entry.build())
    assert list(dict.fromkeys(s.stack for s in sites)) == entry.stacks
    for stack in entry.stacks:
        layers = [s.layer for s in sites if s.stack == stack]
        assert layers == list(range(len(layers)))


@pytest.mark.parametrize(("name", "n_heads"), [("bert", [4] * 3), ("llama", [4] * 3), ("marian", [4] * 3 + [2] * 4)])
def test_heads_are_query_heads_of_the_site_itself(name: str, n_heads: list[int]) -> None:
    sites = find_sites(zoo.ZOO[name].build())
    assert [s.n_heads for s in sites] == n_heads
    assert sites[0].heads == [Head(sites[0].stack, 0, h) for h in range(4)]


def test_heads_that_are_left_keep_their_numbers() -> None:
    model = zoo.ZOO["marian"].build()
    place = find_sites(model)[1].module
    shrink(model, place, [0, 3])
    site = find_sites(model)[1]
    assert (site.n_heads, site.left) == (2, (0, 3))
    assert site.heads == [Head("encoder", 1, 0), Head("encoder", 1, 3)]
    assert [s.left for s in find_sites(model) if s.module != place] == [None] * 6
    shrink(model, place, [])
    assert (find_sites(model)[1].n_heads, find_sites(model)[1].heads) == (0, [])


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("albert", [(0, 0)] * 4),
        ("albert-groups", [(0, 0), (0, 0), (1, 0), (1, 0)]),
        ("albert-inner", [(0, 0), (0, 1)] * 2 + [(1, 0), (1, 1)] * 2),
        ("albert-unshared", [(0, 0), (1, 0), (2, 0), (3, 0)]),
    ],
)
def test_missing_layer_idx_albert_has_a_site_at_every_depth_and_names_the_module_that_runs_there(
    name: str, modules: list[tuple[int, int]]
) -> None:
    model = zoo.ZOO[name].build()
    sites = find_sites(model)
    expected = [f"encoder.albert_layer_groups.{g}.albert_layers.{i}.attention" for g, i in modules]
    assert [s.module for s in sites] == expected
    assert {s.shared for s in sites} == {name != "albert-unshared"}
    called = []
    for module_name, module in model.named_modules():
        if dispatches(module):
            module.register_forward_pre_hook(lambda *_, n=module_name: called.append(n))
    model(**zoo.padded(zoo.ZOO[name]))
    assert called == expected


def test_missing_layer_idx_numbers_come_from_the_walk() -> None:
    model = zoo.ZOO["bart"].build()
    for module in model.modules():
        if hasattr(module, "layer_idx"):
            module.layer_idx = 7
    sites = find_sites(model)
    assert [str(s) for s in sites] == [f"encoder.{i}" for i in range(3)] + [
        f"{s}.{i}" for s in ("decoder", "cross") for i in range(2)
    ]


@pytest.mark.parametrize("name", ["llama", "mistral", "opt", "qwen3"])
def test_a_decoder_that_sees_all_tokens_is_an_encoder(name: str) -> None:
    entry = zoo.ZOO[name]
    model = entry.build(is_causal=False)
    assert {site.stack for site in find_sites(model)} == {"encoder"}
    assert not is_decoder_only(model)
    assert {site.stack for site in find_sites(entry.build())} == {"decoder"}


def unsupported_models() -> dict[str, transformers.PreTrainedModel]:
    return {
        "deberta": transformers.DebertaModel(transformers.DebertaConfig(**TINY)),
        "deberta-v2": transformers.DebertaV2Model(transformers.DebertaV2Config(**TINY)),
        "mpnet": transformers.MPNetModel(transformers.MPNetConfig(**TINY)),
        "xlm": transformers.XLMModel(transformers.XLMConfig(vocab_size=60, emb_dim=32, n_layers=2, n_heads=4)),
        "xlnet": transformers.XLNetModel(
            transformers.XLNetConfig(vocab_size=60, d_model=32, n_layer=2, n_head=4, d_inner=40)
        ),
        "longformer": transformers.LongformerModel(transformers.LongformerConfig(**TINY, attention_window=4)),
        "gpt-j": transformers.GPTJModel(
            transformers.GPTJConfig(vocab_size=60, n_embd=32, n_layer=2, n_head=4, rotary_dim=8)
        ),
        "bloom": transformers.BloomModel(transformers.BloomConfig(vocab_size=60, hidden_size=32, n_layer=2, n_head=4)),
        "falcon": transformers.FalconModel(transformers.FalconConfig(**TINY)),
    }


@pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning")
def test_models_that_compute_attention_themselves_are_refused_with_the_reason_and_what_works() -> None:
    for model in unsupported_models().values():
        with pytest.raises(UnsupportedModelError, match="computes attention itself") as caught:
            AttentionSession(model)
        assert type(model).__name__ in caught.value.message
        assert "BERT, ALBERT, RoBERTa" in caught.value.advice
        assert "DeBERTa" in caught.value.advice


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no attention heads"):
        find_sites(nn.Linear(2, 2))


def test_two_towers_are_refused_and_each_alone_works() -> None:
    tower = TINY | {"projection_dim": 8, "max_position_embeddings": 20}
    config = transformers.CLIPConfig(
        text_config=tower,
        vision_config=TINY | {"image_size": 8, "patch_size": 4, "projection_dim": 8},
    )
    model = transformers.CLIPModel(config)
    with pytest.raises(UnsupportedModelError, match="more than one encoder stack") as caught:
        find_sites(model)
    assert "text_model" in caught.value.advice
    assert [site.stack for site in find_sites(model.text_model)] == ["decoder"] * 2, "its tokens see none after them"
    assert [site.stack for site in find_sites(model.vision_model)] == ["encoder"] * 2


class NoHeads(nn.Module):
    def forward(self) -> object:
        return ALL_ATTENTION_FUNCTIONS  # noqa: F821


class NoEager(NoHeads):
    num_heads = 2


def test_a_module_that_does_not_tell_its_heads_or_has_no_eager_function_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="does not say how many heads"):
        find_sites(nn.ModuleDict({"layer": NoHeads()}))
    assert find_sites(nn.ModuleDict({"layer": NoEager()}))[0].n_heads == 2
    with pytest.raises(UnsupportedModelError, match="no eager attention function"):
        eager_function(NoEager())


def test_the_walk_runs_nothing_and_changes_nothing() -> None:
    model = zoo.ZOO["bert"].build()
    before = torch.get_rng_state()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was run"))
    find_sites(model)
    assert torch.equal(torch.get_rng_state(), before)
