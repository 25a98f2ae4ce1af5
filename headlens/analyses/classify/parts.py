"""Runs of `headlens classify` over parts of a corpus, and runs that add their sums up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from headlens.analyses.classify.options import ClassifyRequest
from headlens.errors import OptionError
from headlens.runs.corpus_pass import parse_shard, part_folders
from headlens.runs.output_options import arguments
from headlens.runs.progress import Reporter
from headlens.runs.run import Run, open_run


def partial_sums_of(request: ClassifyRequest) -> list[Path] | None:
    """Returns the folders of the parts that a request adds up; None if it reads the corpus.

    Raises:
        InputError: if the parts do not go together, see `part_folders`.
    """
    if not request.merge:
        return None
    return part_folders(request.merge, "classify", arguments(replace(request, shard=None)))


@contextmanager
def open_part(request: ClassifyRequest, reporter: Reporter | None) -> Iterator[Run]:
    """Opens a run, and tells it which part of the corpus it reads, or the sums of which parts it adds up.

    Raises:
        OptionError: if several processes share the work, which do that by themselves.
        InputError: see `partial_sums_of` and `open_run`.
    """
    sums = partial_sums_of(request)
    # A run that adds parts up is of the whole corpus, also where its options are those of a part.
    asked = request if sums is None else replace(request, shard=None)
    part = None if asked.shard is None else parse_shard(asked.shard)
    with open_run("classify", request.models[0], asked, reporter) as run:
        if run.processes.count > 1 and (part or sums):
            raise OptionError("--shard and --merge each run in a single process.", "Run without torchrun.")
        if part is not None:
            run.tell(f"These numbers are for part {request.shard} of the sentences only; --merge adds up all parts.")
        yield replace(run, part=part, sums=sums)
