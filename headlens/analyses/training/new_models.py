"""Models with random weights by name, such as `new:bert-small`, for the commands that train."""

from __future__ import annotations

from torch import nn

from headlens.analyses.training.options import TextOptions
from headlens.analyses.training.text_training import Trainable, new_model
from headlens.corpora.sentence import Corpus
from headlens.files import output_errors
from headlens.models.loading import choose_device
from headlens.models.model_options import Device
from headlens.runs.run import Run
from headlens.training.architectures import PREFIX


def made_new(run: Run, name: str, corpus: Corpus, text: TextOptions, seed: int, device: Device) -> Trainable:
    """The model, on its device, and a vocabulary learned from the corpus.

    Args:
        run: under way; processes learn the vocabulary one each.
        name: such as `new:bert-small`.
        corpus: pairs for translation.
        text: task and size of the vocabulary.
        seed: of the weights.
        device: where it is to be.

    Raises:
        OptionError: if there is no such model, or no such vocabulary can be made.
    """
    # Hidden: nothing that a run which fails here could go on from.
    folder = run.kept(".vocabulary")
    with run.reporter.status("learning a vocabulary"), output_errors(folder):
        if run.processes.first:
            folder.mkdir(parents=True, exist_ok=True)
        run.processes.gather(None)
        process_folder = folder / str(run.processes.rank)
        process_folder.mkdir(exist_ok=True)
        trainable = new_model(name.removeprefix(PREFIX), corpus, text, seed, process_folder)
    moved: nn.Module = trainable.model
    moved.to(choose_device(device))
    return trainable
