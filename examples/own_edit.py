"""An intervention of your own: what do sentence embeddings lose when no token may look at [SEP]?

Run: python examples/own_edit.py [MODEL]
"""

import sys

import torch
from torch import Tensor

import headlens


class WithoutToken(headlens.Edit):
    """Hides one token of the vocabulary from all queries.

    Args:
        token: its number in the vocabulary.
    """

    edits_mask = True

    def __init__(self, token: int) -> None:
        self.token = token

    def mask(self, context: headlens.CallContext, mask: Tensor | None) -> Tensor | None:
        """Additive, (batch, 1, 1, key), on top of the model's own mask."""
        assert context.keys is not None
        assert context.keys.ids is not None
        hidden = (context.keys.ids == self.token)[:, None, None, :]
        own = torch.zeros(hidden.shape, dtype=context.query.dtype, device=hidden.device)
        own = own.masked_fill(hidden, torch.finfo(own.dtype).min)
        return own if mask is None else mask + own


def main() -> None:
    """Print the accuracy on the bundled paraphrases with and without the separator."""
    loaded = headlens.load(sys.argv[1] if len(sys.argv) > 1 else "demo")
    task, source = headlens.open_task()
    assert loaded.tokenizer is not None
    separator = loaded.tokenizer.sep_token_id
    for name, edit in (("whole encoder", None), ("without [SEP]", WithoutToken(separator))):
        if edit is None:
            found = headlens.evaluate(task, loaded, source)
        else:
            with headlens.attach_edit(loaded.model, edit):
                found = headlens.evaluate(task, loaded, source)
        own = found.metrics[task.metrics[0]]
        print(f"{name:14} {task.metrics[0]} {own.value:.3f} [{own.ci_low:.3f}, {own.ci_high:.3f}]")


if __name__ == "__main__":
    main()
