"""Models with heads removed in lm-evaluation-harness, against models whose weights of these heads are 0."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from saved import build, save
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from headlens.errors import OptionError

pytestmark = [
    pytest.mark.slow,  # the harness takes seconds to import
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness (pip install lm-eval)")
REMOVED = ["decoder.0.1", "decoder.1.0"]
TASK = """
task: which
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{start}}}}"
doc_to_choice: "{{{{ends}}}}"
doc_to_target: right
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


@pytest.fixture
def decoder(bytebpe_tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return build("GPT2LMHeadModel", len(bytebpe_tokenizer), attn_implementation="eager")


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with a task of a few rows."""
    rows = [
        {"start": f"The {noun} {verb}", "ends": [" in the house", " because the river sings", " now"], "right": n % 3}
        for n, (noun, verb) in enumerate((n, v) for n in ("cat", "dog", "teacher") for v in ("sleeps", "waits"))
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "which.yaml").write_text(TASK.format(data=tmp_path / "rows.jsonl"), encoding="utf-8")
    return tmp_path


def without(model: PreTrainedModel, heads: list[str]) -> PreTrainedModel:
    """A copy in which what the output projection reads of these heads counts nothing."""
    cut = copy.deepcopy(model)
    width = cut.config.n_embd // cut.config.n_head
    for _, layer, head in (name.split(".") for name in heads):
        with torch.no_grad():
            cut.transformer.h[int(layer)].attn.c_proj.weight[int(head) * width : (int(head) + 1) * width] = 0
    return cut


def scores(model: Any, tasks: Path) -> tuple[dict[str, Any], list[list[float]]]:
    """What the harness makes of a model: the results of the task, and the log-likelihoods of each row's choices."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = simple_evaluate(model, tasks=["which"], task_manager=manager, bootstrap_iters=0, log_samples=True)
    likelihoods = [[choice[0] for choice in sample["filtered_resps"]] for sample in found["samples"]["which"]]
    return found, likelihoods


@pytest.mark.parametrize("heads", [REMOVED, []])
def test_removed_heads_are_as_if_their_weights_were_0(
    decoder: PreTrainedModel, bytebpe_tokenizer: PreTrainedTokenizerBase, tasks: Path, heads: list[str]
) -> None:
    from lm_eval.models.huggingface import HFLM

    from headlens.lm_eval import HeadlensLM

    options: dict[str, Any] = {"tokenizer": bytebpe_tokenizer, "batch_size": 4, "device": "cpu"}
    whole = scores(HFLM(decoder, **options), tasks)[1]
    expected, likelihoods = scores(HFLM(without(decoder, heads), **options), tasks)
    model = HeadlensLM(decoder, heads, **options)
    found, ours = scores(model, tasks)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(likelihoods), rtol=0, atol=1e-4)
    assert found["results"] == expected["results"]
    assert model.get_model_info()["heads_removed"] == heads
    apart = (torch.tensor(ours) - torch.tensor(whole)).abs().max()
    assert apart > 0.01 if heads else apart < 1e-4
    # A model that was given is as it was before.
    model.close()
    torch.testing.assert_close(torch.tensor(scores(HFLM(decoder, **options), tasks)[1]), torch.tensor(whole))


def test_texts_are_generated_without_the_heads(
    decoder: PreTrainedModel, bytebpe_tokenizer: PreTrainedTokenizerBase
) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from headlens.lm_eval import HeadlensLM

    asked = [
        Instance("generate_until", {}, (text, {"until": ["\n"], "max_gen_toks": 8}), n)
        for n, text in enumerate(["The cat sleeps in the", "A dog"])  # of two lengths, in one batch
    ]
    options: dict[str, Any] = {"tokenizer": bytebpe_tokenizer, "batch_size": 2, "device": "cpu"}
    expected = HFLM(without(decoder, REMOVED), **options).generate_until(asked)
    assert HeadlensLM(decoder, "+".join(REMOVED), **options).generate_until(asked) == expected
    assert HFLM(build("GPT2LMHeadModel", len(bytebpe_tokenizer)), **options).generate_until(asked) != expected


def test_heads_that_are_not_there_are_refused(
    decoder: PreTrainedModel, bytebpe_tokenizer: PreTrainedTokenizerBase
) -> None:
    from headlens.lm_eval import HeadlensLM

    for heads, said in (("decoder.7.0", r"decoder\.7\.0"), ("first", "first")):
        with pytest.raises(OptionError, match=said):
            HeadlensLM(decoder, heads, tokenizer=bytebpe_tokenizer, device="cpu")


def test_the_program_of_the_harness_knows_the_model(
    decoder: PreTrainedModel, bytebpe_tokenizer: PreTrainedTokenizerBase, tasks: Path
) -> None:
    model = save(decoder, tasks / "model", bytebpe_tokenizer)
    words = ["run", "--model", "headlens", "--model_args", f"pretrained={model},heads={'+'.join(REMOVED)}"]
    words += ["--tasks", "which", "--include_path", str(tasks), "--device", "cpu", "--output_path", str(tasks / "out")]
    command = [sys.executable, "-m", "headlens.lm_eval", *words]
    done = subprocess.run(command, cwd=tasks, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (written,) = (tasks / "out").rglob("results_*.json")
    results = json.loads(written.read_text(encoding="utf-8"))
    assert results["config"]["heads_removed"] == REMOVED
    from headlens.lm_eval import HeadlensLM

    own = scores(HeadlensLM(decoder, REMOVED, tokenizer=bytebpe_tokenizer, device="cpu"), tasks)[0]
    assert results["results"]["which"]["acc,none"] == own["results"]["which"]["acc,none"]
