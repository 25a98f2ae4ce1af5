"""What a step of a recipe writes, as far as its options tell: the rows of its tables, without their numbers."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.commands import commands
from headlens.analyses.masks.recipe import study_cases
from headlens.analyses.reproduce.paper_recipe import PaperRecipe, Step
from headlens.analyses.sparsefinder.figures import LOOKS
from headlens.analyses.sparsefinder.pareto_points import BLOCK
from headlens.errors import OptionError
from headlens.models.names import short_model_name
from headlens.options import DEMO
from headlens.tables.ablation_tables import PRUNING
from headlens.tables.classify_tables import AGREEMENT, DIRECTIONS, SMOOTHNESS, SMOOTHNESS_STATISTICS
from headlens.tables.mask_tables import CLASSES, DRAWS, MASK_TRAININGS
from headlens.tables.prune_tables import ROLES_KEPT, SWEEP
from headlens.tables.sparsefinder_tables import ANTECEDENTS, AREAS, GOLD, POS_PAIRS
from headlens.tasks.catalogue import CATALOGUE

# What config.json of a BERT and of an ALBERT have.
_CONFIG = {"num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768, "embedding_size": 128}


_requests: dict[str, Any] = {}
_rows: dict[tuple[str, str, tuple[str | None, ...]], pd.DataFrame] = {}


def request_of(recipe: PaperRecipe, step: Step) -> Any:
    """The request of a step, made once; what earlier steps leave lies in folders of their names."""
    if repr(step) not in _requests:
        _requests[repr(step)] = _made(recipe, step)
    return _requests[repr(step)]


def _made(recipe: PaperRecipe, step: Step) -> Any:
    options = step.filled({s.name: f"runs/{s.name}" for s in recipe.steps})
    command = commands()[step.command]
    return command.request(command.by_field(options, recipe.name))


def possible_rows(recipe: PaperRecipe, step: Step, file: str) -> pd.DataFrame:
    """The rows that a file of a step has, found once; columns of numbers are 1 throughout."""
    key = repr(step), file, tuple(own.model for own in recipe.steps)
    if key not in _rows:
        _rows[key] = _found(recipe, step, file)
    return _rows[key]


def _found(recipe: PaperRecipe, step: Step, file: str) -> pd.DataFrame:
    rows = {
        ("masks", "masks.csv"): _masks,
        ("masks", "draws.csv"): _draws,
        ("masks", "sparsity.csv"): _patterns,
        ("train-dam", "sparsity.csv"): _learned,
        ("train-dam", "positions.csv"): _positions,
        ("train-dam", "importance.csv"): _importance,
        ("prune", "sweep.csv"): _gates,
        ("classify", "syntax.csv"): _syntax,
        ("classify", "heads.csv"): _heads,
        ("prune", "roles.csv"): _roles_kept,
        ("classify", "agreement.csv"): _agreement,
        ("classify", "smoothness.csv"): _smoothness,
        ("ablate", "pruning.csv"): _pruned,
        ("ablate", "smoothness.csv"): _smoothness,
        ("sparsefinder", "areas.csv"): _areas,
        ("sparsefinder", "pos_pairs.csv"): _pos_pairs,
        ("sparsefinder", "antecedents.csv"): _antecedents,
        ("train", "model/config.json"): lambda *_: [_CONFIG],
    }
    if file == "run.json":
        return pd.DataFrame(
            [dict.fromkeys([*commands()[step.command].options, "parameters", "layers_share_weights"], 1)]
        )
    return pd.DataFrame(rows[step.command, file](recipe, step))


def _reported(task: str) -> tuple[str, ...]:
    """The metrics that studies of many trainings write."""
    return CATALOGUE[task].task.reported


def _ones(columns: list[str], **cells: Any) -> dict[str, Any]:
    return dict.fromkeys(columns, 1.0) | cells


def _masks(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    request = request_of(recipe, step)
    task = request.study.training_set.data.task
    rows = []
    tasks = (task, *(text.partition("=")[0] for text in request.study.also_on))
    cells = product(study_cases(request.study, tuple(request.pattern)), tasks)
    for case, task, metric in ((case, name, metric) for case, name in cells for metric in _reported(name)):
        try:
            degrees = case.degrees()
        except OptionError:  # a mask that is not learned yet
            degrees = {}
        cells = {"pattern": str(case.mask), "layers": case.layers or "all", "control": case.diagonal, "seed": case.seed}
        cells |= {"task": task, "metric": metric, "diagonal": case.diagonal != "dropped"}
        rows.append(_ones(MASK_TRAININGS.names, **cells, **degrees))
    return rows


def _draws(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    study = request_of(recipe, step).study
    learned = map(str, study.degrees.masks if study.degrees.draws else ())
    rows = pd.DataFrame(_masks(recipe, step))
    rows = rows[rows["pattern"].isin(learned)].to_dict("records")
    cells = product(rows, range(study.degrees.draws))
    return [_ones(DRAWS.names, draw=draw) | {k: row[k] for k in DRAWS.names if k in row} for row, draw in cells]


def _patterns(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    names = product(request_of(recipe, step).chosen(), (True, False))
    return [{"mask": name, "diagonal": diagonal, "sparsity": 1.0} for name, diagonal in names]


def _learned(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    request = request_of(recipe, step)
    about = {"diagonal": request.dam.diagonal, "sparsity": 1.0, "layer": np.nan}
    return [{**about, "penalty": strength, "head": head} for strength in request.lambdas for head in (0.0, np.nan)]


def _positions(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    strengths = request_of(recipe, step).lambdas
    return [{"penalty": strength, "class": name, "head": 0, "p": 1.0} for strength, name in product(strengths, CLASSES)]


def _importance(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    updates = (0, request_of(recipe, step).training.steps)
    return [{**row, "step": update} for row, update in product(_positions(recipe, step), updates)]


def _gates(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    request = request_of(recipe, step)
    inits = ["trained", *["scratch"] * request.sweep.from_scratch]
    metrics = _reported(request.training_set.data.task)
    cells = product((np.nan, *request.sweep.lambdas), inits, metrics)
    return [_ones(SWEEP.names, penalty=penalty, init=init, metric=metric) for penalty, init, metric in cells]


def _syntax(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    names = product(request_of(recipe, step).options.relations, DIRECTIONS)
    numbers = dict.fromkeys(("accuracy", "baseline"), 1.0)
    return [{"stack": "encoder", "relation": name, "direction": direction, **numbers} for name, direction in names]


def _heads(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    measured = ("confidence", "confidence_all", *(["relevance"] if request_of(recipe, step).relevance else []))
    numbers = dict.fromkeys(measured, 1.0)
    # All roles that are counted: whether any head has them is what a run finds out.
    roles = "positional(+1); syntactic(nsubj dep->head); rare"
    return [{"model": name, "stack": "encoder", "roles": roles, **numbers} for name in _labels(recipe, step)]


def _roles_kept(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    assert request_of(recipe, step).roles.roles_corpus is not None
    roles = ("positional(+1); syntactic(nsubj dep->head)", "rare", np.nan)
    return [_ones(ROLES_KEPT.names, stack="encoder", roles=of_head, role=of_head) for of_head in roles]


def _agreement(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    pairs = combinations(_labels(recipe, step), 2)
    return [_ones(AGREEMENT.names, model=one, other_model=other, stack="encoder") for one, other in pairs]


def _smoothness(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    models = _labels(recipe, step)
    quantities = ("confidence", "confidence_all") if step.command == "classify" else ("delta",)
    numbers = dict.fromkeys(SMOOTHNESS.names[len(SMOOTHNESS.identity) :], 1.0)
    of_one = [(name, np.nan, how) for name, how in product(models, SMOOTHNESS_STATISTICS)]
    # The later model less the earlier one.
    pairs = [(b, a, "depth_correlation") for a, b in combinations(models, 2)]
    return [
        {"model": name, "other_model": other, "statistic": how, "quantity": quantity, "stack": "encoder", **numbers}
        for (name, other, how), quantity in product((*of_one, *pairs) if len(models) > 1 else (), quantities)
    ]


def _pruned(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    request = request_of(recipe, step)
    metric = CATALOGUE[request.data.task].task.metrics[0]
    cells = product(_labels(recipe, step), (0, *request.pruning.prune), request.pruning.strategies)
    return [_ones(PRUNING.names, model=name, n_pruned=n, strategy=how, metric=metric) for name, n, how in cells]


def _areas(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    begins_with = next((s.model for s in recipe.steps if s.name in step.references), step.model)
    stacks = ("encoder", "decoder", "cross") if begins_with == "new:marian-base" else ("encoder",)
    blocks = request_of(recipe, step).grid.block_size is not None
    names = list(product(stacks, (GOLD, *(name for name in LOOKS if blocks or not name.startswith(BLOCK)))))
    rows = [_ones(AREAS.names[2:], stack=stack, method=method, quality="recall") for stack, method in names]
    if (task := request_of(recipe, step).metric.task) in CATALOGUE:
        # All stacks of a model are restricted together.
        together, metric = "all" if len(stacks) > 1 else stacks[0], CATALOGUE[task].task.metrics[0]
        rows += [
            _ones(AREAS.names[2:], stack=together, method=method, quality=metric)
            for stack, method in names
            if stack == stacks[0]
        ]
    return rows


def _pos_pairs(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    """Parts of speech come from the bundled treebank, or from a parser."""
    request = request_of(recipe, step)
    tags = ("ADJ", "ADV", "AUX", "NOUN", "PRON", "VERB") if request.corpus == DEMO or request.parser != "gold" else ()
    return [_ones(POS_PAIRS.names, query_tag=query, key_tag=key) for query, key in product(tags, tags)]


def _antecedents(recipe: PaperRecipe, step: Step) -> list[dict[str, Any]]:
    """Of the corpora of recipes, the bundled treebank alone says what mentions refer to."""
    return [_ones(ANTECEDENTS.names)] if request_of(recipe, step).corpus == DEMO else []


def _labels(recipe: PaperRecipe, step: Step) -> list[str]:
    """What tables call the models of a step: the name of the step that left them."""
    models = request_of(recipe, step).models
    return [short_model_name(name) for name in models]
