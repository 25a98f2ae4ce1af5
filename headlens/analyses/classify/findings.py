"""The findings of a classification in sentences: where heads mainly attend, the best relation, and other roles."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from headlens.analyses.classify.circuit_report import circuit_sentences
from headlens.analyses.classify.probe_report import probe_sentences
from headlens.analyses.classify.roles_over_training import of_last_checkpoint, steps_first
from headlens.analyses.classify.syntax_figure import gain
from headlens.errors import counted
from headlens.models.names import recorded_steps
from headlens.pages.formatting import percent_texts
from headlens.plots.head_grid import StackRows, by_model_and_stack, float_column, head_name
from headlens.plots.role_colours import NONE, families
from headlens.relevance_propagation.overviews import relevance_findings
from headlens.roles.even_attention import NEARLY_ALL, even_heads, even_sentence, has_even, is_even, most_entropy
from headlens.roles.role_options import Thresholds
from headlens.roles.role_rules import ROLES
from headlens.roles.syntax_verdicts import is_syntactic
from headlens.runs.reading import RecordedRun

# What a relation joins: its dependent, its head.
_ENDS = {
    "nsubj": ("subject", "verb"),
    "nsubj:pass": ("passive subject", "verb"),
    "obj": ("object", "verb"),
    "iobj": ("indirect object", "verb"),
    "obl": ("oblique", "verb"),
    "amod": ("adjective", "noun"),
    "advmod": ("adverb", "word"),
    "det": ("determiner", "noun"),
    "case": ("preposition or other case marker", "noun"),
    "nmod": ("modifying noun", "noun"),
    "nmod:poss": ("possessor", "possessed noun"),
    "aux": ("auxiliary", "verb"),
    "aux:pass": ("passive auxiliary", "verb"),
    "cop": ("copula", "predicate"),
    "mark": ("subordinator", "clause"),
    "conj": ("later conjunct", "first conjunct"),
    "cc": ("conjunction", "conjunct"),
    "compound": ("compound modifier", "noun"),
    "nummod": ("number", "noun"),
    "xcomp": ("open complement", "verb"),
    "ccomp": ("clausal complement", "verb"),
    "advcl": ("adverbial clause", "verb"),
    "acl": ("modifying clause", "noun"),
    "acl:relcl": ("relative clause", "noun"),
    "appos": ("apposition", "noun"),
    "compound:prt": ("particle", "verb"),
    "csubj": ("clausal subject", "verb"),
    "discourse": ("interjection", "word"),
    "expl": ("expletive", "verb"),
    "obl:agent": ("agent", "passive verb"),
    "parataxis": ("parenthetical clause", "clause"),
    "vocative": ("addressee", "verb"),
}


def recorded_findings(run: RecordedRun) -> list[str]:
    """Returns what a run of `headlens classify` found, and its relevance where it was measured."""
    heads = run.tables.get("heads", pd.DataFrame(columns=["model"]))
    few = [model for model in map(str, heads["model"].unique()) if _read_too_little(run, model)]
    return [*classify_findings(run.tables, few, recorded_steps(run.model_facts)), *relevance_findings(run)]


def classify_findings(
    tables: Mapping[str, pd.DataFrame], few: Collection[str] = (), steps: Mapping[str, int] | None = None
) -> list[str]:
    """Returns up to three sentences per model and stack: the main targets, the best relation, the best other role.

    Args:
        tables: `heads`, `syntax` where there were trees, and those of probes where there were any.
        few: models that read too little for roles.
        steps: of checkpoints of one training by model; how these change is said first, and the last is told in full.
    """
    findings = steps_first(tables, steps or {})
    if findings:
        tables = of_last_checkpoint(tables, steps or {})
    known = (tables.get(name, pd.DataFrame(columns=["model", "stack"])) for name in ("heads", "syntax"))
    heads, syntax = ({part.name: part for part in by_model_and_stack(table)} for table in known)
    for name in dict.fromkeys([*heads, *syntax]):
        part, relations = heads.get(name), syntax.get(name)
        sentences = [] if relations is None else [_best_relation(relations.rows)]
        if part is not None:
            sentences = [*_resting(part), *sentences, *_best_of_others(part)]
            if part.model in few:
                sentences = ["no head is given a role because too little text was read; the notes say how much."]
                if is_even(part.rows):
                    sentences.insert(0, even_sentence(part.rows))
            elif is_even(part.rows):
                sentences = [even_sentence(part.rows)]
            elif has_even(part.rows):
                sentences.insert(0, even_sentence(part.rows))
            elif all(family == NONE for family in families(part.rows["role"])):
                sentences.insert(0, f"none of {counted(len(part.rows), 'head')} has a role on this text.")
        findings += [f"{name}: {sentence}" for sentence in sentences]
    findings += probe_sentences(tables["probes"]) if "probes" in tables else []
    return findings + circuit_sentences(tables)


def _resting(part: StackRows) -> Iterator[str]:
    """How many heads attend mainly to which kind of token, and how much of their weight goes there."""
    held = [str(roles).split("; ") for roles in part.rows["roles"]]
    clauses: list[str] = []
    for role in (role for role in ROLES if role.rests):
        rest = np.array([role.name in role_names for role_names in held])
        if rest.any():
            weight = np.fmax.reduce([float_column(part.rows, column) for column in role.columns])[rest].mean()
            norm = float_column(part.rows, role.norm)[rest].mean()
            verb, whose = ("attends", "its") if rest.sum() == 1 else ("attend", "their")
            of = "" if clauses else f" of {counted(len(held), 'head')}"
            norms = "" if np.isnan(norm) else f", {norm:.0%} of the norms of the weighted values"
            clauses.append(
                f"{rest.sum()}{of} {verb} mainly to {role.description} ({weight:.0%} of {whose} weight{norms})"
            )
    if clauses:
        yield f"{', '.join(clauses)}."


def _best_relation(syntax: pd.DataFrame) -> str:
    """The head that follows a relation farthest above a fixed offset, of those that do so significantly."""
    sure = syntax[is_syntactic(syntax)]
    if sure.empty:
        return "no head beats the fixed-offset baseline of any relation significantly and by the required margin."
    best = sure.iloc[int(np.argmax(gain(sure)))]
    relation, direction = str(best["relation"]), str(best["direction"])
    ends = _ENDS.get(relation) or _ENDS.get(relation.partition(":")[0], ("dependent", "head"))
    end, start = reversed(ends) if direction == "dep->head" else ends
    article = "an" if start[0] in "aeiou" else "a"
    others = len(sure.drop_duplicates(["layer", "head"])) - 1
    also = "also follows" if others == 1 else "also follow"
    more = f" {counted(others, 'other head')} {also} a relation." if others else ""
    null = float(best.get("accuracy_null", np.nan))
    share, baseline, uniform = percent_texts(float(best["accuracy"]), float(best["baseline"]), null)
    uniform = f", uniform attention in {uniform}" if np.isfinite(null) else ""
    return (
        f"{head_name(best)} finds the {end} of {article} {start} ({relation} {direction}) in "
        f"{share}{_interval(best, 'ci')} of {int(best['n']):,} cases; a fixed offset does so in {baseline}{uniform}."
        f"{more}"
    )


def _best_of_others(part: StackRows) -> Iterator[str]:
    """The head that is farthest above the threshold of its strongest role, of the other roles.

    Where nearly all are broad none of them is named for that.
    """
    others = {role.name: role for role in ROLES if not role.rests and role.columns[0] in part.rows}
    names = [str(r) if r in others else f for r, f in zip(part.rows["role"], families(part.rows["role"]), strict=True)]
    rows = part.rows.assign(name=names, score=float_column(part.rows, "nearest_score"))
    known = rows[rows["name"].isin(list(others))]
    # Heads that spread it more evenly still do not hold the role.
    holds = np.array(["broad" in str(roles).split("; ") for roles in rows["roles"]])
    broad = rows[holds | even_heads(rows)]
    if len(broad) > 1 and len(broad) >= NEARLY_ALL * len(rows):
        known = known[known["name"] != "broad"]
        spread, even = float_column(broad, "entropy_norm"), most_entropy(broad)
        least, most, *levels = percent_texts(*(float(end) for n in (spread, even) for end in (n.min(), n.max())))
        yield (
            f"{len(broad)} of {counted(len(rows), 'head')} spread their attention nearly evenly ({least} to {most} of "
            f"the maximum entropy; uniform attention: {' to '.join(dict.fromkeys(levels))})."
        )
    if known.empty:
        return
    # Runs of headlens 0.1 have no scores.
    best = known.iloc[int(np.argmax(known["score"].fillna(0.0)))]
    role = others[str(best["name"])]
    n = f"{best[role.instances]:,.0f}" if role.instances in best else "the"
    baselines = {name: f"{words}:" for name, words in role.baselines.items()}
    baselines = {role.chance: "chance level"} if role.chance else baselines
    baselines = {name: words for name, words in baselines.items() if name in best}
    null = float(best.get(f"{role.columns[0]}_null", np.nan))
    # What is no more than even is not to look as if it were.
    beside = (role.even * min(1.0, null), *(float(best[name]) for name in baselines))
    share, uniform, _, *others_text = percent_texts(float(best[role.columns[0]]), null, *beside)
    compared = "".join(f", {words} {text}" for words, text in zip(baselines.values(), others_text, strict=True))
    if np.isfinite(null):
        compared += f"; uniform attention: {uniform}"
    share += _interval(best, f"{role.columns[0]}_ci")
    does = role.description.format(share=share, n=n, where=_where(best["positional_offset"]))
    yield f"{head_name(best)} {does}{compared}."


def _interval(row: pd.Series[Any], ends: str) -> str:
    low, high = row.get(f"{ends}_low", np.nan), row.get(f"{ends}_high", np.nan)
    return f" [{low:.0%}, {high:.0%}]" if np.isfinite([low, high]).all() else ""


def _where(offset: Any) -> str:
    """Returns the most frequent offset of a head as words of a sentence."""
    if pd.isna(offset):
        return "no token in particular"
    known = {-1: "the previous token", 1: "the next token"}
    return known.get(int(offset), f"the token at {int(offset):+d}")


def _read_too_little(run: RecordedRun, model: str) -> bool:
    """Whether a run recorded that a model read less than roles need."""
    read = run.encoding_of(model)
    pairs = [(read.get(n), run.argument(f"min_{n}", getattr(Thresholds, f"min_{n}"))) for n in ("sentences", "tokens")]
    return any(isinstance(n, int) and isinstance(least, int) and n < least for n, least in pairs)
