"""What a notebook or an example is run behind in a test: the bundled task has its first 60 examples only.

As committed they measure all of it, which takes minutes; that they run does not need that.
"""

FEW_EXAMPLES = """
import functools
import headlens
headlens.open_task = functools.partial(headlens.open_task, options=headlens.DataOptions(limit=60))
for name in ("ablate", "train_dam", "prune"):
    setattr(headlens, name, functools.partial(getattr(headlens, name), limit=60))
""".strip()
