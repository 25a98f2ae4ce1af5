"""What surrounds the recipe of a command: its run folder, its processes, and what is kept for --resume."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headlens.corpora.corpus_summary import CorpusSummary
from headlens.errors import OutputError
from headlens.models.loading import LoadedModel, load
from headlens.models.model_options import ModelOptions
from headlens.runs.checkpoint import Checkpoint
from headlens.runs.corpus_pass import CorpusPass
from headlens.runs.folder import RunFolder
from headlens.runs.mask_options import MaskOptions
from headlens.runs.model_mask import mask_record, under_mask
from headlens.runs.output_options import OutputOptions, arguments
from headlens.runs.processes import Processes, process_group
from headlens.runs.progress import Reporter, SilentReporter


@dataclass(frozen=True)
class Run:
    """A run under way.

    Args:
        path: the run folder; all processes see it.
        folder: what writes there; None in all processes but the first.
        processes: with whom the work is shared.
        reporter: shows progress; silent in all processes but the first.
        warnings: what the user was told on the way.
        said: which of it was told by `warn_once`.
    """

    path: Path
    folder: RunFolder | None
    processes: Processes
    reporter: Reporter
    warnings: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def writes(self) -> bool:
        """Whether this process writes the folder."""
        return self.folder is not None

    @property
    def files(self) -> list[Path]:
        """What was written, as far as this process wrote it."""
        return [] if self.folder is None else self.folder.files

    def file(self, name: str) -> AbstractContextManager[Path]:
        """See `RunFolder.file`; for the process that writes."""
        assert self.folder is not None
        return self.folder.file(name)

    def kept(self, name: str) -> Path:
        """Where something is kept until the run has finished."""
        return self.path / RunFolder.KEPT / name

    def keeper(self, name: str, loaded: LoadedModel, identity: Mapping[str, str]) -> Checkpoint:
        """Where this process keeps what an interrupted run goes on from.

        Args:
            name: unique in the run and the same when it is resumed.
            loaded: the model.
            identity: what else it depends on, see `Checkpoint`.
        """
        common = {"the weights of the model": loaded.weight_hash, "the number of processes": str(self.processes.count)}
        return Checkpoint(self.kept(f"{name}-{self.processes.rank}.npz"), {**common, **identity})

    def depend_on(self, loaded: LoadedModel | None, parts: Mapping[str, str]) -> None:
        """Refuse to go on with another model or other data than the run began with; for what no `keeper` keeps.

        Args:
            loaded: the model as it was loaded; None for one that is made anew.
            parts: what else the results come from, in words fit for a message ("the corpus" -> its hash).

        Raises:
            ResumeError: if something changed since the run was interrupted.
        """
        if self.folder is not None:
            weights = {} if loaded is None else {"the weights of the model": loaded.weight_hash}
            self.folder.depend_on({**weights, **parts})

    def load(self, name: str, options: ModelOptions) -> LoadedModel:
        """Load the model `name` with the given options, showing a status line meanwhile."""
        with self.reporter.status(f"loading {name}"):
            return load(name, options)

    def warn(self, text: str) -> None:
        """Tell the user at once, and again among the notes."""
        self.warnings.append(text)
        self.reporter.warn(text)

    def warn_once(self, text: str) -> None:
        """The same, but only the first of all these calls: many passes meet with the same lack of memory."""
        if not self.said:
            self.said.append(text)
            self.warn(text)

    def masked(self, loaded: LoadedModel, options: MaskOptions) -> AbstractContextManager[None]:
        """Inside, the model runs under the mask of the options, if there is one."""
        return under_mask(loaded.model, options, self.tell)

    def tell(self, text: str) -> None:
        """The user should know, but not more than once."""
        if text not in self.warnings:
            self.warn(text)

    @contextmanager
    def corpus_pass(self, name: str, text: str, loaded: LoadedModel, corpus: CorpusSummary) -> Iterator[CorpusPass]:
        """A pass of a corpus that can be interrupted and gone on with.

        Args:
            name: of the pass, unique in the run and the same when it is resumed.
            text: what the user is told.
            loaded: the model that reads it.
            corpus: all of it, whatever the number of processes.
        """
        keeper = self.keeper(name, loaded, {"the corpus": corpus.sha256})
        own = len(range(self.processes.rank, corpus.sentences, self.processes.count))
        with self.reporter.progress(text, own) as advance:
            yield CorpusPass(advance, self.warn, keeper, self.processes)


@contextmanager
def open_run(command: str, model: str, request: Any, reporter: Reporter | None = None) -> Iterator[Run]:
    """Make or take the run folder of a request, alone or together with the processes torchrun started.

    Args:
        command: its name.
        model: for the name of a new folder.
        request: a dataclass with a `place`, and perhaps a `mask`.
        reporter: shows progress.

    Raises:
        OutputError: see `RunFolder.create`, and if no process may see the folder but the first.
    """
    place: OutputOptions = request.place
    # What is wrong with a mask is told before anything is made.
    facts = mask_record(request.mask) if hasattr(request, "mask") else {}
    with ExitStack() as stack:
        processes = stack.enter_context(process_group())
        folder: RunFolder | None = None
        if processes.first:
            folder = RunFolder.create(
                place.out, command=command, model=model, overwrite=place.overwrite, resume=place.resume
            )
            stack.enter_context(folder)
            folder.start({"arguments": arguments(request), "processes": processes.count, **facts})
        path = processes.share(None if folder is None else folder.path.absolute())
        assert path is not None
        if not path.is_dir():
            raise OutputError(f"process {processes.rank} does not see {path}.", "Name a shared folder with --out.")
        shown = folder.path if folder is not None else path
        yield Run(shown, folder, processes, (reporter if processes.first else None) or SilentReporter())
