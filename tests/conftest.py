"""How tests are run: options, processes, and a surrounding that is the same everywhere."""

import fixed_environment  # noqa: F401 - before anything reads the environment

# isort: split
import gc
import os
import signal

import cpu_budget
import pytest
import slow_selection
from hypothesis import settings

# What is imported and collected stays to the end: looking through it for garbage costs a sixth of collecting, and time
# in every test. `pytest_collection_finish` sets it aside and turns the collector on.
gc.disable()
# A deadline fails where the machine is busy, and says nothing of the code. `--hypothesis-profile=nightly` looks longer.
settings.register_profile("default", deadline=None, max_examples=10)
settings.register_profile("nightly", deadline=None, max_examples=100)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    cpu_budget.add_options(parser)
    slow_selection.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach the programs that tests start, also where pytest runs in the background of a shell."""
    cpu_budget.register(config)
    slow_selection.register(config)
    # The process that only hands out tests to others needs neither torch nor what else fixtures import.
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None) or config.option.collectonly:
        config.pluginmanager.import_plugin("shared_fixtures")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Of several processes each runs tests that follow each other, which share fixtures, and an idle one takes over."""
    if config.getoption("numprocesses", None) and config.getoption("dist") == "no":
        config.option.dist = "worksteal"
        if config.getoption("slow_minutes"):  # one by one, the longest first
            config.option.dist, config.option.maxschedchunk = "load", 1


@pytest.hookimpl(optionalhook=True)  # `pytest -p no:xdist` does not know it
def pytest_xdist_auto_num_workers() -> int:
    """`pytest -n auto`: a process per core, but no more than eight, each of which loads torch."""
    return min(8, os.cpu_count() or 1)


def pytest_collection_finish() -> None:
    """Set aside what is there when the first test begins, and collect garbage from then on."""
    gc.freeze()
    gc.enable()
