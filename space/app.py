"""A Space on Hugging Face: where every head of a small model looks in a sentence, and what each does over a text.

Run it here with `pip install gradio "headlens[demo]"` and `python app.py`. `HEADLENS_MODEL` names another model.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import gradio
import pandas as pd

import headlens
from headlens.errors import HeadlensError

MODEL = os.environ.get("HEADLENS_MODEL", "demo")
SENTENCE = "The children who had lost their tricycles waited for the unbelievably slow bus."
LONGEST_SENTENCE, LONGEST_TEXT = 500, 20_000  # letters
COLUMNS = ["layer", "head", "role", "nearest", "confidence", "entropy_norm", "positional_offset", "positional_share"]
ABOUT = f"""# headlens
What every attention head of a model does: the interactive view of one sentence, and the roles of heads over a text.
Model: `{MODEL}`. headlens does this and more on your machine, without a server."""


@cache
def model() -> Any:
    """Returns the model, loaded when it is first needed."""
    return headlens.load(MODEL)


def attend(sentence: str) -> str:
    """Returns the interactive view of one sentence as HTML."""
    return shown(headlens.attend, sentence.strip()[:LONGEST_SENTENCE] or SENTENCE)._repr_html_()


def classify(text: str) -> tuple[str, pd.DataFrame]:
    """Returns what heads do in sentences, one on each line, as HTML, and a table with a row for every head.

    Without a text it is what they do on the bundled treebank, where dependency relations are known, too.
    """
    lines = [line for line in text[:LONGEST_TEXT].splitlines() if line.strip()]
    result = shown(headlens.classify, lines or "demo", similarity="off")
    heads = result.tables["heads"]
    return result._repr_html_(), heads[[name for name in COLUMNS if name in heads]].round(3)


def shown(function: Any, *arguments: Any, **options: Any) -> headlens.Result:
    """Returns the result of a function of headlens for the model; what it refuses is shown in words."""
    try:
        result: headlens.Result = function(model(), *arguments, **options)
    except HeadlensError as problem:
        raise gradio.Error(str(problem)) from problem
    return result


with gradio.Blocks(title="headlens") as page:
    gradio.Markdown(ABOUT)
    # A model is read by one visitor at a time.
    alone: dict[str, Any] = {"concurrency_limit": 1, "concurrency_id": "model"}
    with gradio.Tab("A sentence"):
        words = gradio.Textbox(SENTENCE, label="Sentence", max_length=LONGEST_SENTENCE)
        show, view = gradio.Button("Show attention", variant="primary"), gradio.HTML()
        gradio.on([show.click, words.submit, page.load], attend, words, view, **alone)
    with gradio.Tab("A text"):
        lines = gradio.Textbox(label="Sentences, one on each line; empty: the bundled treebank", lines=8)
        start, found, table = gradio.Button("Classify heads", variant="primary"), gradio.HTML(), gradio.Dataframe()
        start.click(classify, lines, [found, table], **alone)

if __name__ == "__main__":
    page.launch()
