"""The Space on Hugging Face: what its files say, and what its functions return."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from saved import build, save
from small_vocabulary import small_wordpiece  # noqa: F401
from transformers import PreTrainedTokenizerBase

SPACE = Path(__file__).resolve().parents[1] / "space"
# In a process of its own: gradio leaves event loops and sockets open.
CALLS = """
import json

import gradio
from app import LONGEST_SENTENCE, attend, classify

found, heads = classify("The cat sleeps.\\n\\nDogs bark.\\n")
try:
    attend("A cat." + chr(0xD800))
except gradio.Error as problem:
    refused = problem.message
answers = {
    "view": attend("A <b>cat</b> sleeps."),
    "example": attend(" "),
    "long": attend("one " * LONGEST_SENTENCE + "9876"),
    "found": found,
    "heads": heads.to_dict("list"),
    "refused": refused,
}
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory, wordpiece_tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What the functions of the Space return for a tiny model."""
    if find_spec("gradio") is None:
        pytest.skip("needs gradio (pip install gradio)")
    model = build("BertModel", len(wordpiece_tokenizer), max_position_embeddings=128)
    folder = save(model, tmp_path_factory.mktemp("models") / "tiny", wordpiece_tokenizer)
    environment = {**os.environ, "HEADLENS_MODEL": folder, "GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", CALLS]
    done = subprocess.run(command, cwd=SPACE, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_its_files_name_each_other() -> None:
    front = re.match(r"---\n(.*?)\n---\n", (SPACE / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert front is not None
    said = dict(line.split(": ", 1) for line in front[1].splitlines())
    assert said["sdk"] == "gradio"
    assert (SPACE / said["app_file"]).is_file()
    assert len(said["short_description"]) <= 60  # more is refused there
    assert (SPACE / "requirements.txt").read_text(encoding="utf-8").split() == ["headlens[demo]"]
    assert len((SPACE / "app.py").read_text(encoding="utf-8").splitlines()) <= 80


@pytest.mark.slow
def test_attention_of_a_sentence_is_shown(answers: dict[str, Any]) -> None:
    assert "headlens attend of tiny" in answers["view"]
    assert 'sandbox="allow-scripts"' in answers["view"]
    assert "<b>cat" not in answers["view"]
    # Nothing typed shows the example, and no more than so many letters are read.
    assert "tricycles" in answers["example"]
    assert "9876" not in answers["long"]


@pytest.mark.slow
def test_heads_of_a_text_are_classified(answers: dict[str, Any]) -> None:
    assert "headlens classify of tiny" in answers["found"]
    heads = answers["heads"]
    assert list(zip(heads["layer"], heads["head"], strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(0 < value <= 1 for value in heads["confidence"])


@pytest.mark.slow
def test_what_is_refused_is_told(answers: dict[str, Any]) -> None:
    assert "surrogate" in answers["refused"] or "\\ud800" in answers["refused"]
