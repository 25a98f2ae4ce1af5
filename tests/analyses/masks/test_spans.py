"""Models with learned spans are measured as they were trained, but that what is masked has no weight at all."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
import zoo

from headlens.analyses.masks.cases import MaskCase
from headlens.analyses.masks.degree_tables import unsettled_spans
from headlens.analyses.masks.learned_tables import span_rows
from headlens.analyses.masks.options import SpanOptions, StudyRequest
from headlens.analyses.masks.study import learning, spanned, under
from headlens.analyses.masks.text_graphs import StudyTexts
from headlens.attention_masks.learned_mask import LearnedAttentionMask, SettledMask, masked_sites
from headlens.attention_masks.named_masks import LearnedSpans
from headlens.errors import OptionError


def test_ramps_are_measured_and_zeros_are_exact() -> None:
    model, inputs = zoo.ZOO["bert"].build(), zoo.padded(zoo.ZOO["bert"])
    case = MaskCase(LearnedSpans(1.0, 2))
    options, _ = learning(case, StudyRequest(spans=SpanOptions((1.0,), 2)), StudyTexts({9: 1}, {}), 9)
    mask = LearnedAttentionMask(masked_sites(model), options.mask, options.law).eval()
    with torch.no_grad():
        mask.alpha.copy_(torch.linspace(-7, -1, mask.alpha.numel()).view_as(mask.alpha))
    learned: Any = SimpleNamespace(model=model, mask=mask)
    training_set: Any = SimpleNamespace(task=SimpleNamespace(network=lambda model: model))
    real = inputs["attention_mask"].bool()

    def weights() -> torch.Tensor:
        with torch.inference_mode():
            return model(**inputs, output_attentions=True).attentions[0]

    plain = weights()
    with under(model, case, {}, SettledMask.kept(mask)), spanned(case, training_set, learned):
        found = weights()
    torch.testing.assert_close(weights(), plain)
    log = pd.DataFrame([{"step": 10, "span 0 1": 6.0}, {"step": 20, "span 0 1": 5.0}, {"step": 24, "span 0 1": 4.0}])
    rows = {row["head"]: row for row in span_rows(mask, log) if row["layer"] == 0}
    # since update 10, the last one that is logged in the first two thirds of 24
    assert [row["change"] for row in rows.values()][:2] == [pytest.approx(math.nan, nan_ok=True), rows[1]["span"] - 6]
    # Of few updates one row is logged: what spans are beside their start, without which they would seem settled.
    (start,) = {mask.law.spans(mask.law.start(torch.zeros(1))).item()}
    few = pd.DataFrame(span_rows(mask, log[:1]))
    assert few["change"].tolist() == pytest.approx((few["span"] - start).tolist(), abs=1e-5)
    assert unsettled_spans(few) == 1
    assert mask.log_columns()["span 0 1"] == rows[1]["span"]
    zeros = partly = 0
    for sentence, n in enumerate(real.sum(1).tolist()):
        for head, row in rows.items():
            for i in range(1, n - 1):
                factors = [max(0.0, min(1.0, (2 + row["span"] - abs(i - j)) / 2)) for j in range(n)]
                factors[0] = factors[-1] = 1.0
                wanted = plain[sentence, head, i, :n] * torch.tensor(factors)
                assert found[sentence, head, i, :n].tolist() == pytest.approx(
                    (wanted / wanted.sum()).tolist(), abs=1e-5
                )
                hard = [j for j in range(1, n - 1) if abs(i - j) > row["reach"]]
                assert (found[sentence, head, i, hard] == 0).all()
                zeros, partly = zeros + len(hard), partly + sum(0 < f < 1 for f in factors)
    assert min(zeros, partly) > 5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"learn_spans": (-1.0,)}, r"--learn-spans -1\.0 is out of range"),
        ({"learn_spans": (1.0,), "span_ramp": 0}, "--law span-ramp 0 is out of range"),
        ({"span_ramp": 8}, "--law span-ramp only applies together with --learn-spans"),
    ],
)
def test_options_that_cannot_be(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        SpanOptions(**wrong)


def test_names_of_what_is_learned() -> None:
    assert [str(m) for m in SpanOptions((0.1, 1e-5)).masks] == ["spans:mu=0.1", "spans:mu=1e-05"]
    assert [str(m) for m in SpanOptions((1.0,), 8).masks] == ["spans:mu=1,ramp=8"]
