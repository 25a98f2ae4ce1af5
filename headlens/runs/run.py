"""What surrounds the recipe of a command: its run folder, its processes, and what is kept for --resume."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
from torch import nn

from headlens.attention.model_normalizer import attention_name
from headlens.attention.sites import Site, find_sites
from headlens.attention_masks.mask_options import MaskOptions
from headlens.attention_masks.model_mask import mask_record, under_mask
from headlens.corpora.sentence import CorpusSummary
from headlens.errors import OptionError, OutputError, UnsupportedModelError
from headlens.interventions.compacting import removed_heads
from headlens.languages import chosen_languages
from headlens.models.given_models import check_usable_weights
from headlens.models.loading import LoadedModel, load
from headlens.models.model_options import ModelOptions
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.corpus_pass import CorpusPass, PassState, fill_from_parts, sums_file
from headlens.runs.folder import RunFolder
from headlens.runs.kv_groups import SharedKeys
from headlens.runs.processes import Processes, process_group
from headlens.runs.progress import Reporter
from headlens.shared_options import OutputOptions, arguments
from headlens.unchanged_files import one_state_of_files

# Raised whenever metrics keep other sums than before, so that none are added to those of another headlens.
_SUMS = "2"
_LABELS = 20  # names of a model that are looked for in tables


@dataclass(frozen=True)
class Run:
    """A run under way.

    Args:
        path: the run folder; all processes see it.
        folder: what writes there; None in all processes but the first.
        processes: with whom the work is shared.
        reporter: shows progress; silent in all processes but the first.
        warnings: what the user was told on the way.
        warned_once: the warning of `warn_once`, if there was one.
        part: the part of corpora that is read, where other runs read the rest.
        merged: folders of the runs of all parts, whose sums are added up: no corpus is read then.
        mask_name: of the mask that models are under; empty for models as they are.
    """

    path: Path
    folder: RunFolder | None
    processes: Processes
    reporter: Reporter
    warnings: list[str] = field(default_factory=list)
    warned_once: list[str] = field(default_factory=list)
    part: Processes | None = None
    merged: Sequence[Path] = ()
    mask_name: str = ""

    @property
    def writes(self) -> bool:
        """Whether this process writes the folder."""
        return self.folder is not None

    @property
    def files(self) -> list[Path]:
        """Paths of the files written so far; none in a process that does not write."""
        return [] if self.folder is None else self.folder.files

    def file(self, name: str) -> AbstractContextManager[Path]:
        """Gives a temporary path for a file of the run, as `RunFolder.file` does; only for the process that writes."""
        assert self.folder is not None
        return self.folder.file(name)

    def set_aside(self, *patterns: str) -> None:
        """Moves files of a run that is overwritten out of the way, as `RunFolder.set_aside` does."""
        if self.folder is not None:
            self.folder.set_aside(*patterns)

    def kept(self, name: str) -> Path:
        """Returns the path of a file that is kept until the run has finished."""
        return self.path / RunFolder.KEPT / name

    def checkpoint(self, name: str, loaded: LoadedModel, identity: Mapping[str, str]) -> Checkpoint:
        """Returns the checkpoint from which this process goes on when the run is resumed.

        Args:
            name: unique in the run and the same when it is resumed.
            loaded: the model.
            identity: what else the result depends on, see `Checkpoint`.
        """
        common = {**_model_identity(loaded), "the number of processes": str(self.processes.count)}
        return Checkpoint(self.kept(f"{name}-{self.processes.rank}.npz"), {**common, **identity})

    def depend_on(self, loaded: LoadedModel | None, parts: Mapping[str, str]) -> None:
        """Refuses to go on with another model or other data than the run began with; for what no `checkpoint` keeps.

        Args:
            loaded: the model as it was loaded; None for one that is made anew.
            parts: what else the results come from, in words fit for a message ("the corpus" -> its hash).

        Raises:
            ResumeError: if something changed since the run was interrupted.
        """
        if self.folder is not None:
            self.folder.depend_on({**({} if loaded is None else _model_identity(loaded)), **parts})

    def load(self, name: str, options: ModelOptions, *, reads_only: bool = False) -> LoadedModel:
        """Loads a model, and tells what is to be known about how it was loaded.

        Args:
            name: of the model.
            options: how it is loaded.
            reads_only: whether nothing but what comes out of its layers is needed; its weights may be quantised then,
                or offloaded.

        Raises:
            ModelError: for such weights elsewhere; otherwise as in `headlens.models.loading.load`.
        """
        with self.reporter.status(f"loading {name}"):
            loaded = load(name, options)
        if not reads_only:
            check_usable_weights(loaded.name, loaded.model)
        for note in loaded.notes:
            self.tell(f"{loaded.name}: {note}")
        if self.folder is not None:
            self.folder.know(shared_keys(loaded))
        return loaded

    def warn(self, text: str) -> None:
        """Shows a warning to the user at once, and again among the notes of the run."""
        self.warnings.append(text)
        self.reporter.warn(text)

    def warn_once(self, text: str) -> None:
        """Warns as `warn` does, but only for the first of all calls: many passes meet with the same lack of memory."""
        if not self.warned_once:
            self.warned_once.append(text)
            self.warn(text)

    def masked(self, loaded: LoadedModel, options: MaskOptions) -> AbstractContextManager[None]:
        """Returns a context in which the model runs under the mask of the options, if there is one, which is told."""
        if self.mask_name:
            self.tell(
                f"All numbers of {loaded.short_name} are under the mask {self.mask_name}, not of the model as it is."
            )
        return under_mask(loaded.model, options, self.tell)

    def tell(self, text: str) -> None:
        """Warns as `warn` does, unless the same text was shown before."""
        if text not in self.warnings:
            self.warn(text)

    @contextmanager
    def corpus_pass(self, name: str, text: str, loaded: LoadedModel, corpus: CorpusSummary) -> Iterator[CorpusPass]:
        """Yields a pass of a corpus that can be interrupted and resumed.

        Args:
            name: of the pass, unique in the run and the same when it is resumed.
            text: of the progress bar.
            loaded: the model that reads it.
            corpus: all of it, whatever the number of processes.
        """
        inputs = {"the corpus": corpus.sha256, "the way in which headlens keeps sums": _SUMS}
        checkpoint = self.checkpoint(name, loaded, inputs)
        identity = {**_model_identity(loaded), **inputs}

        def collect(state: PassState) -> None:
            if self.merged:
                fill_from_parts(self.merged, state, name, identity)
            else:
                with self.file(sums_file(name)) as path:
                    path.write_bytes(state.dump(identity))

        shard = None if self.merged else self.part or self.processes
        sentences = 0 if shard is None else shard.shard_size(corpus.sentences)
        with self.reporter.progress(text, sentences, None) as advance:
            yield CorpusPass(advance, self.warn, checkpoint, shard, None if shard is self.processes else collect)


def model_record(loaded: LoadedModel, label: str) -> dict[str, Any]:
    """Returns what run.json says of a model: where it came from, and on what it was run.

    Args:
        loaded: the model.
        label: name of the model in tables.
    """
    removed, sites = removed_heads(loaded.model), _known_sites(loaded.model)
    languages = chosen_languages(loaded.tokenizer, loaded.model, loaded.unknown_languages)
    return {
        "model": label,
        "name": loaded.name,
        "revision": loaded.revision,
        "weight_hash": loaded.weight_hash,
        "parameters": loaded.n_parameters,
        "device": str(loaded.device),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "attention": attention_name(loaded.model),
        **({"layers_share_weights": len({site.module for site in sites}) < len(sites)} if sites else {}),
        **({"languages": languages} if languages else {}),
        **({"heads_removed": [str(head) for head in removed]} if removed else {}),
    }


def _known_sites(model: nn.Module) -> list[Site]:
    """Where a model computes attention; nothing of a model whose heads are not found."""
    with suppress(UnsupportedModelError):
        return find_sites(model)
    return []


def model_label(loaded: LoadedModel, taken: Container[str]) -> str:
    """Returns the name of a model in tables: its short name, with parent folders where that is taken."""
    return next(n for n in _labels(loaded) if n not in taken)


def shared_keys(loaded: LoadedModel) -> SharedKeys:
    """Returns which heads of a model share keys; one without heads that can be found shares nothing."""
    groups = {(s.stack, s.layer): s.shared_by for s in _known_sites(loaded.model) if s.shared_by > 1}
    return SharedKeys(tuple(islice(_labels(loaded), _LABELS)), groups)


def _labels(loaded: LoadedModel) -> Iterator[str]:
    """The names that a model may have in tables, the first one first; without end."""
    parts = Path(loaded.name).parts
    longer = ["/".join(parts[-count:]) for count in range(2, len(parts))]
    yield from dict.fromkeys((loaded.short_name, *longer, loaded.name))
    yield from (f"{loaded.name} ({number})" for number in count(2))


def _model_identity(loaded: LoadedModel) -> dict[str, str]:
    return {
        "the weights of the model": loaded.weight_hash,
        "the configuration or the tokenizer of the model": f"{loaded.revision} {loaded.settings_hash}",
    }


@dataclass(frozen=True)
class FinishedRun:
    """What a run gave: its folder with the files in it, the tables as written, and what to know about them."""

    folder: Path
    files: list[Path]
    tables: dict[str, pd.DataFrame]
    notes: list[str]


class RunRequest(Protocol):
    """What the request of every command that writes a run has: a dataclass of options, and the folder among them."""

    @property
    def place(self) -> OutputOptions:
        """The folder of the run, and what becomes of another run there."""


@contextmanager
def open_run(
    command: str,
    model: str,
    request: RunRequest,
    reporter: Reporter | None = None,
    *,
    mask: MaskOptions | None = None,
    alone: bool = False,
) -> Iterator[Run]:
    """Makes or takes the run folder of a request, alone or together with the processes torchrun started.

    Args:
        command: name of the command.
        model: for the name of a new folder.
        request: what is asked for.
        reporter: shows progress.
        mask: under which models run; None for a command without that option.
        alone: whether it is one that several processes cannot share.

    Raises:
        OptionError: if there are several processes for a run that is `alone`.
        OutputError: see `RunFolder.create`, and if no process may see the folder but the first.
    """
    place = request.place
    # An error in the mask is raised before anything is made.
    mask_facts = {} if mask is None else mask_record(mask)
    with ExitStack() as stack:
        stack.enter_context(one_state_of_files())
        processes = stack.enter_context(process_group())
        if alone and processes.count > 1:
            raise OptionError(f"{command} runs in one process.", "Start it without torchrun.")
        folder: RunFolder | None = None
        if processes.first:
            folder = RunFolder.create(
                place.out, command=command, model=model, overwrite=place.overwrite, resume=place.resume
            )
            stack.enter_context(folder)
            folder.start({"arguments": arguments(request), "processes": processes.count, **mask_facts})
        path = processes.share(None if folder is None else folder.path.absolute())
        assert path is not None
        if not path.is_dir():
            raise OutputError(f"process {processes.rank} cannot see {path}.", "Name a shared folder with --out.")
        # The first process shows the path as the user gave it; the others know only the absolute one.
        shown_path = folder.path if folder is not None else path
        shown = (reporter if processes.first else None) or Reporter()
        run = Run(shown_path, folder, processes, shown, mask_name=mask_facts.get("mask", {}).get("name", ""))
        stack.enter_context(_log_as_notes(run))
        yield run


@contextmanager
def _log_as_notes(run: Run) -> Iterator[None]:
    """Makes what modules log of data, such as pairs that were left out, a warning and a note of the run."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: run.tell(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("headlens")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
