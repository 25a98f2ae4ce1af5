"""Parts of a model that are not to be trained, and models without gradients of their parameters for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from torch import nn
from transformers import PreTrainedModel

from headlens.attention.sites import find_sites
from headlens.errors import OptionError
from headlens.heads import Stack
from headlens.weights.shared_layer_masks import around_layers


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Switches the gradients of all parameters of a model off inside `with`, and back on afterwards."""
    with ExitStack() as undo:
        for parameter in [p for p in model.parameters() if p.requires_grad]:
            undo.callback(parameter.requires_grad_)
            parameter.requires_grad = False
        yield


def freeze(model: PreTrainedModel, parts: Iterable[str]) -> None:
    """Leave parts of a model as they are when it is trained.

    What parts share is frozen with either: Marian's decoder holds the embeddings of the encoder, too.

    Args:
        model: any model.
        parts: of `PARTS`: the layers of the `encoder` or `decoder` with what stands in the same module, `embeddings`,
            the `head` (all that is not in the base model), `all`.

    Raises:
        OptionError: if there is no such part.
    """
    for part in parts:
        for parameter in weights_of(model, part):
            parameter.requires_grad = False


def weights_of(model: PreTrainedModel, part: str) -> list[nn.Parameter]:
    """The weights of a part, see `freeze`.

    Raises:
        OptionError: if there is no such part.
    """
    if part not in PARTS:
        raise OptionError(f"--training-args freeze {part}: unknown part.", f"Parts: {', '.join(PARTS)}.")
    if not (weights := list(PARTS[part](model))):
        raise OptionError(
            f"--training-args freeze {part}: {type(model).__name__} has no such weights.", "Leave it out."
        )
    return weights


def _layers(model: PreTrainedModel, *stacks: Stack) -> Iterator[nn.Parameter]:
    modules = {around_layers(s.module) for s in find_sites(model) if s.stack in stacks}
    return (p for name in modules for p in model.get_submodule(name).parameters())


def _embeddings(model: PreTrainedModel) -> Iterator[nn.Parameter]:
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) or name.rpartition(".")[2] == "embeddings":
            yield from module.parameters()


def _head(model: PreTrainedModel) -> Iterator[nn.Parameter]:
    inside = {id(p) for p in model.base_model.parameters()}
    return (p for p in model.parameters() if id(p) not in inside)


PARTS: dict[str, Callable[[PreTrainedModel], Iterator[nn.Parameter]]] = {
    "encoder": lambda model: _layers(model, "encoder"),
    "decoder": lambda model: _layers(model, "decoder", "cross"),
    "embeddings": _embeddings,
    "head": _head,
    "all": PreTrainedModel.parameters,
}
