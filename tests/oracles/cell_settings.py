"""What title, row and column of a cell promise, against the step and the rows that its number comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from possible_rows import possible_rows, request_of

from headlens.analyses.reproduce.claims import Claim, ClaimSide
from headlens.analyses.reproduce.paper_cells import ENDS, matching, step_and_task
from headlens.analyses.reproduce.paper_recipe import PaperRecipe, Step
from headlens.analyses.reproduce.paper_tables import CellSource, ComparedColumn, ComparedRow, ComparedTable

GLUE = ("mnli", "mnli-mm", "qqp", "qnli", "sst2", "cola", "stsb", "mrpc", "rte")
_TASKS = {
    r"MNLI-mm": ("mnli-mm",),
    r"MNLI-m\b|MNLI(?!-)": ("mnli",),
    r"QQP": ("qqp",),
    r"QNLI": ("qnli",),
    r"SST-2": ("sst2",),
    r"CoLA": ("cola",),
    r"STS-B": ("stsb",),
    r"MRPC": ("mrpc",),
    r"RTE": ("rte",),
    r"SWAG(?! and)": ("swag",),
    r"SQuAD 1\.1": ("squad",),
    r"SQuAD 2\.0": ("squad2",),
    r"paraphrases": ("paraphrase",),
    r"BLEU": ("translation",),
    r"average": GLUE,
}
_METRICS = {r"\bF1\b": "f1", r"\bEM\b": "exact", r"accuracy": "accuracy", r"BLEU": "bleu"}
# Of a task whose metric is not named: what GLUE counts.
_USUAL = {"qqp": "f1", "mrpc": "f1", "cola": "matthews", "stsb": "spearman"}
_PATTERNS = re.compile(
    "(strided|fixed|longformer|logsparse|bigbird|star|syntax|lexical|neighbour|random|DAM|learned|global|drop-attention|"
    "drop-layers|adaptive span)\\b"
)
_DIRECTIONS = {
    "verb to subject": "head->dep",
    "subject to verb": "dep->head",
    "verb to object": "head->dep",
    "object to verb": "dep->head",
    "noun to adjective": "head->dep",
    "adjective to noun": "dep->head",
    "verb to adverb": "head->dep",
    "adverb to verb": "dep->head",
}
_CORPORA = {
    "WMT": "wmt/",
    "OpenSubtitles": "opensubtitles",
    "German": r"\b(de-en|en-de)\b",
    "French": r"\b(fr-en|en-fr)\b",
}
_STATISTICS = {"correlation over depth": "depth_correlation", "Moran's I": "morans_i"}
_QUANTITIES = {r"without \[SEP\]": "confidence", r"with \[SEP\]": "confidence_all", "worth": "delta"}
_TAGS = {"verbs": "VERB", "nouns": "NOUN", "auxiliaries": "AUX"}
# What tells settings apart in a file.
_SETTINGS = (
    *("pattern", "metric", "control", "layers", "init", "penalty", "model", "diagonal", "strategy", "n_pruned"),
    *("other_model", "statistic", "quantity", "task"),
)
# What a claim reads besides its number, by what decides it.
_EVIDENCE = {
    "seeds": ("seed",),
    "heads": ("head",),
    "interval": ENDS,
    "p_value": ("expected", "p_value"),
    "correlation": (),
    "groups": ("head",),
}
# The columns of files by what tables call them; others are called as they are.
_VALUES = {
    "rare words": "rare",
    "syntactic, above the baseline": "margin",
    "windows": "{windows}",
    "thresholds": "{thresholds}",
    "buckets and clusters": "{groups}",
    "global tokens": "{groups}",
    "random blocks": "{groups}",
    "without [SEP]": "confidence",
    "with [SEP]": "confidence_all",
    "best head": "accuracy",
    "hidden": "hidden_size",
    "million parameters": "parameters",
    "layers share weights": "{layers_share_weights}",
}


def problems(recipe: PaperRecipe) -> Iterator[str]:
    """What is wrong with the tables and claims of a recipe, in words; cells that say what they need are left out."""
    steps = {step.name: step for step in recipe.steps}
    for table in map(ComparedTable.of, recipe.tables):
        for row in table.rows:
            for column in table.columns:
                sources = [s for s in table.sources_of(row, column) if not s.needs]
                if not table.small:
                    sources = [s for s in sources if s.step not in recipe.stand_ins]
                for problem in _of_cell(recipe, steps, table, row, column, sources) if sources else ():
                    yield f"{table.title} | {row.label} | {column.name}: {problem}"
    if not recipe.stand_ins:
        yield from _of_claims(recipe, steps)


def _of_claims(recipe: PaperRecipe, steps: Mapping[str, Step]) -> Iterator[str]:
    for claim in map(Claim.of, recipe.claims):
        for step, metric in claim.steps.items():
            name, task = step_and_task(step)
            rows = matching(possible_rows(recipe, steps[name], claim.file), task)
            compared = claim.evidence in ("seeds", "heads", "groups")
            sides = (claim.first, claim.second) if compared else (claim.first,)
            for side in sides:
                fitting = matching(rows, {**({claim.metric_column: metric} if metric else {}), **side.where})
                if fitting.empty:
                    yield f"{claim.claim}: {step} has no rows {side.where} of {metric}"
                elif claim.evidence in ("interval", "p_value") and side.pick == "mean" and len(fitting) > 1:
                    yield f"{claim.claim}: {len(fitting)} rows of {step} would be one number"
                if missing := {*side.minimum, *side.maximum, claim.value, *_EVIDENCE[claim.evidence]} - set(rows):
                    yield f"{claim.claim}: {step} has no columns {missing}"
            request = request_of(recipe, steps[name])
            for side, words in zip(sides, claim.reading.split(" less ", len(sides) - 1), strict=True):
                yield from (f"{claim.claim}: {problem}" for problem in _of_reading(claim, side, words, request))


def _of_reading(claim: Claim, side: ClaimSide, words: str, request: Any) -> Iterator[str]:
    """What the words of a claim's side promise, against its rows; words that are not understood promise nothing."""
    where = side.where
    bound = re.search(r"(?:above|at most) ([\d.]+)$", claim.reading)
    promised: dict[str, tuple[Any, Any]] = {}
    if bound:
        promised["bound"] = float(bound[1]), claim.at_most if "at most" in claim.reading else claim.at_least
    if "statistic" in where:
        models = [name.lower() for name in re.findall("ALBERT|BERT", words)]
        promised["models"] = models, [where["model"], *filter(None, [where["other_model"]])]
        promised["statistic"] = next(s for word, s in _STATISTICS.items() if word in words), where["statistic"]
    if draws := re.search(r"of (\d+) draws", claim.reading):
        pick = "largest" if "best" in words else "smallest" if "worst" in words else "mean"
        promised |= {"draws": (int(draws[1]), request.study.degrees.draws), "pick": (pick, side.pick)}
        promised["mu"] = f"degrees:mu={re.findall(r'mu ([0-9.]+)', claim.reading)[0]}", where["pattern"]
    if last := re.search(r"without (attention in )?its last (\d+) layers", words):
        promised["layers"] = f"last:{last[2]}", where["layers"]
        promised["pattern"] = "drop-attention" if last[1] else "drop-layers", where["pattern"]
    for key, (said, actual) in promised.items():
        if said != actual:
            yield f"{key} is {actual}, and the words say {said}"


def _of_cell(
    recipe: PaperRecipe,
    steps: Mapping[str, Step],
    table: ComparedTable,
    row: ComparedRow,
    column: ComparedColumn,
    sources: list[CellSource],
) -> Iterator[str]:
    for source in sources:
        if source.step not in steps:
            yield f"there is no step {source.step}"
            return
        rows = matching(possible_rows(recipe, steps[source.step], source.file), source.where)
        names = re.findall(r"\{(\w+)\}", column.value) or [column.value] * (column.pick != "count")
        settings = rows[[name for name in _SETTINGS if name in rows]].drop_duplicates()
        if rows.empty:
            yield f"{source.step} never writes a row {dict(source.where)}"
        elif missing := set(names) - set(rows):
            yield f"{source.file} of {source.step} has no columns {missing}"
        elif column.pick in ("first", "seeds") and len(settings) > 1 and "n_pruned" not in source.where:
            yield f"rows of several settings fit {dict(source.where)}"
        elif column.pick == "first" and "seed" in rows and rows["seed"].nunique() > 1:
            yield "the number is that of the first seed alone"
    facts = [_facts(recipe, steps, source, column) for source in sources]
    promised = _promised(recipe, table, row, column, facts[0])
    for key, value in promised.items():
        actual = tuple(dict.fromkeys(fact.get(key) for fact in facts))
        if actual != (value if key == "task" and value else (value,)):
            yield f"{key} is {actual}, and the words say {value}"


def _facts(
    recipe: PaperRecipe, steps: Mapping[str, Step], source: CellSource, column: ComparedColumn
) -> dict[str, Any]:
    """The setting of the step and the rows that a number comes from."""
    step, where = steps[source.step], source.where
    request = request_of(recipe, step)
    mask = str(where.get("pattern", where.get("mask", "")))
    learned = re.match(r"\{(dam[\w-]*)\}.*penalty-([\d.]+)/mask", mask)
    dam = steps[learned[1]] if learned else step if step.command == "train-dam" else None
    facts: dict[str, Any] = {"value": column.value, "penalty": float(learned[2]) if learned else where.get("penalty")}
    if pruned := re.fullmatch(r"penalty-([\d.]+)", str(where.get("model"))):
        facts["penalty"] = float(pruned[1])
    if dam is not None:
        facts["kind"] = "structured" if request_of(recipe, dam).dam.structured else "unstructured"
    if source.file == "sparsity.csv":
        facts["diagonal"] = "with" if where["diagonal"] == "true" else "without"
    elif source.file in ("masks.csv", "draws.csv"):
        control = where.get("control", "kept" if not request.study.controls else None)
        facts["diagonal"] = {"kept": "with", "dropped": "without", "random": "random"}.get(control)
        if learned and control == "kept" and not request_of(recipe, steps[learned[1]]).dam.diagonal:
            facts["diagonal"] = "without"
        facts |= {"task": where.get("task", request.study.training_set.data.task), "layers": where.get("layers")}
        penalised = re.match("(?:degrees|spans):mu=([^,]+)", mask)
        facts["mu"] = float(penalised[1]) if penalised else None
        facts |= {name: where.get(name) for name in ("degree_global", "degree_random", "degree_neighbour")}
        facts |= {"draws": request.study.degrees.draws} if source.file == "draws.csv" else {}
    elif step.command == "prune":
        facts |= {"task": request.training_set.data.task, "init": where["init"]}
    elif source.file == "pruning.csv":
        facts |= {"task": request.data.task, "n_pruned": where["n_pruned"], "strategy": where.get("strategy")}
    starts = {"{dam": "DAM", "degre": "learned", "spans": "adaptive span", "bigbird:": "global"}
    facts["pattern"] = (starts | {"full": None, "": None}).get(
        next((start for start in starts if mask.startswith(start)), mask), mask.removeprefix("graph:")
    )
    facts["metric"] = where.get("metric")
    named = ("relation", "direction", "method", "stack", "statistic", "quantity", "other_model", "query_tag", "key_tag")
    facts |= {name: where.get(name) for name in named}
    facts["model"] = where.get("model", source.step if source.step in ("bert", "albert") else None)
    chain = [step, *(steps[name] for name in step.references if name in steps)]
    facts["corpora"] = " ".join(text for own in chain for text in own.texts())
    return facts


@dataclass(frozen=True)
class Words:
    """The words around a cell."""

    column: str
    row: str
    title: str

    @property
    def own(self) -> str:
        return f"{self.column} | {self.row}"

    @property
    def all(self) -> str:
        return f"{self.own} | {self.title}"

    def first(self, meanings: Mapping[str, Any]) -> Any:
        """What the nearest words mean: those of the column, then of the row, then of the title."""
        places = (self.column, self.row, self.title)
        return next((m for place in places for word, m in meanings.items() if re.search(word, place)), None)

    def number(self, pattern: str) -> float | None:
        match = re.search(pattern, self.own)
        return float(match[1]) if match else None


def _promised(
    recipe: PaperRecipe, table: ComparedTable, row: ComparedRow, column: ComparedColumn, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """The same as far as the words of a cell say it; keys that such a cell has nothing to do with are left out."""
    words = Words(column.name, row.label, table.title)
    whole = row.where.get("penalty") == ""  # the model that nothing was pruned of
    promised: dict[str, Any] = {"penalty": "" if whole else words.number(r"lambda ([\d.]+)")}
    promised |= _control_words(words, facts)
    if "task" in facts:
        promised |= _task_words(words, column, facts)
    if "n_pruned" in facts:
        promised |= _pruning_words(words)
    if "init" in facts:
        promised["init"] = "scratch" if column.name == "from scratch" else "trained"
    if "layers" in facts:
        promised |= _mask_words(words)
    if facts["pattern"] or table.step == "patterns" or "layers" in facts:
        pattern = _PATTERNS.match(row.label)
        promised["pattern"] = pattern[1] if pattern else None
    promised |= _name_words(recipe, words, facts)
    for word, corpus in _CORPORA.items():
        if (word in words.all) != bool(re.search(corpus, facts["corpora"])):
            promised["corpora"] = f"{word}, in one of the two alone"
    return promised | _value_words(words, column, facts)


def _control_words(words: Words, facts: Mapping[str, Any]) -> dict[str, Any]:
    promised: dict[str, Any] = {}
    if "diagonal" in facts:
        said = words.own if "diagonal" in words.own else words.all
        without = re.search("without (the )?diagonal", said) is not None
        promised["diagonal"] = "without" if without else "random" if "randomly dropped" in words.own else "with"
    if "kind" in facts:
        kinds = [kind for place in (words.own, words.title) for kind in re.findall(r"\b(?:un)?structured\b", place)]
        promised["kind"] = kinds[0] if kinds else None
    return promised


def _name_words(recipe: PaperRecipe, words: Words, facts: Mapping[str, Any]) -> dict[str, Any]:
    promised: dict[str, Any] = {}
    if facts["relation"]:
        relation, _, direction = words.row.partition(", ")
        promised |= {"relation": relation, "direction": _DIRECTIONS[direction]}
    if facts["method"]:
        promised |= {"method": words.row, "stack": words.column}
    if facts["query_tag"]:
        key, _, measure = words.column.partition(", ")
        promised |= {"query_tag": _TAGS[words.row], "key_tag": _TAGS[key.removeprefix("to ")]}
        promised["value"] = {"with weight": "gold_share", "predicted": "predicted_share"}[measure]
    if "draws" in facts:
        draws = re.search(r"(\d+) draws", words.all)
        promised["draws"] = int(draws[1]) if draws else None
    if facts["statistic"]:
        promised["statistic"] = words.first(_STATISTICS)
        promised["quantity"] = words.first(_QUANTITIES)
        promised["other_model"] = "bert" if "ALBERT from BERT" in words.column else ""
    if recipe.name == "song2020":
        promised["model"] = "albert" if "ALBERT" in (words.own if "BERT" in words.own else words.title) else "bert"
    return promised


def _task_words(words: Words, column: ComparedColumn, facts: Mapping[str, Any]) -> dict[str, Any]:
    task, metric = words.first(_TASKS), words.first(_METRICS)
    if task == GLUE or (column.value.startswith("sparsity") and not metric):
        return {"task": task}
    return {"task": task, "metric": metric or _USUAL.get(facts["task"], "accuracy")}


def _pruning_words(words: Words) -> dict[str, Any]:
    n_pruned = words.number(r"(\d+) heads? pruned")
    strategy = re.search(r"\b(ranked|importance|greedy|beam|random)\b", words.row)
    alone = "ranked" if "in order of their individual importance" in words.title and n_pruned else None
    return {"n_pruned": n_pruned, "strategy": strategy[1] if strategy else alone}


def _mask_words(words: Words) -> dict[str, Any]:
    layers = re.search(r"layers (\S+)$", words.row)
    degrees = {f"degree_{kind}": int(n) for kind, n in re.findall(r"(global|random|neighbour)s? (\d+)", words.row)}
    none = dict.fromkeys(("degree_global", "degree_random", "degree_neighbour"))
    return {"layers": layers[1] if layers else None, "mu": words.number(r"mu ([\d.]+)"), **none, **degrees}


def _value_words(words: Words, column: ComparedColumn, facts: Mapping[str, Any]) -> dict[str, Any]:
    if column.pick == "count":
        return {}
    if column.name in _VALUES:
        return {"value": _VALUES[column.name]}
    if re.search("sparsity|masked", words.own) or words.title.startswith(("Sparsity", "Stand-in: sparsity")):
        return {"value": "sparsity_texts" if "text" in column.name else "sparsity"}
    return {"value": "value"} if ("task" in facts or facts["statistic"]) and column.name != "heads" else {}
