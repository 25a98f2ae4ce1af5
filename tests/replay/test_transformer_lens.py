"""Patching of head outputs against TransformerLens, where it is installed (`pip install transformer-lens`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saved import build, save
from tiers import rest_slow
from torch import Tensor

from headlens.attention.sites import Site
from headlens.heads import Head
from headlens.replay.head_ablation import Replay

pytest.importorskip("transformer_lens", reason="TransformerLens is not installed")
VOCABULARY, RIGHT, WRONG = 90, 3, 7


def difference(logits: Tensor) -> Tensor:
    """Of the logits of two tokens at the last position, (texts,)."""
    return logits[:, -1, RIGHT] - logits[:, -1, WRONG]


@pytest.mark.parametrize("name", rest_slow(["GPT2LMHeadModel", "BertForMaskedLM"]))
def test_what_original_outputs_restore_is_theirs(name: str, tmp_path: Path) -> None:
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge

    folder = save(model := build(name, VOCABULARY), tmp_path / "m")
    clean, changed = torch.randint(VOCABULARY, (2, 4, 11), generator=torch.Generator().manual_seed(0))
    bridge: Any = TransformerBridge.boot_transformers(folder, hf_model=model, tokenizer=None)
    _, cache = bridge.run_with_cache(clean)
    theirs = patching.get_act_patch_attn_head_out_all_pos(
        bridge, changed, cache, lambda logits: difference(logits).mean()
    )
    again = type(model).from_pretrained(folder).eval()
    stack = "decoder" if name.startswith("GPT2") else "encoder"
    with Replay(again, "denoise") as replay:
        outputs: dict[Site, Tensor] = replay.run({"input_ids": clean}).head_outputs
        intact = replay.run({"input_ids": changed})
        replay.instead_of(outputs)
        ours = {v.head: float(difference(v.outputs.logits).mean()) for v in intact.variants()}
        before = float(difference(intact.outputs.logits).mean())
    assert len(ours) == theirs.numel() == 4
    for layer, row in enumerate(theirs.tolist()):
        for head, value in enumerate(row):
            assert ours[Head(stack, layer, head)] == pytest.approx(value, abs=1e-5)
            assert abs(value - before) > 1e-4, "patching changes something"
