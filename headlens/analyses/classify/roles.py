"""From measures to labels (Voita et al. 2019, section 5; Clark et al. 2019, section 3)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from headlens.analyses.classify.options import Thresholds
from headlens.errors import counted
from headlens.heads import KEY_COLUMNS, HeadTable


def mark_syntactic(syntax: HeadTable, thresholds: Thresholds) -> HeadTable:
    """Add the columns `syntactic` and `significant` to the rows of syntax.csv.

    `significant` asks for `syntactic` and for p_holm < 0.05.
    """
    rows = syntax.rows
    enough = rows["n"] >= thresholds.min_instances
    # Counts are whole: that 0.2 + 0.1 is a little more than 0.3 must not decide about 3 of 10.
    above = rows["accuracy"] >= thresholds.syntactic(rows["baseline"].to_numpy()) - 1e-12
    syntactic = enough & above
    return HeadTable(rows.assign(syntactic=syntactic, significant=syntactic & (rows["p_holm"] < 0.05)))


def too_little_notes(sentences: int, tokens: int, thresholds: Thresholds) -> list[str]:
    """The note on a corpus of which too few sentences or tokens were read to give any head a role; none if enough."""
    if sentences >= thresholds.min_sentences and tokens >= thresholds.min_tokens:
        return []
    verb = "was" if sentences == 1 else "were"
    return [
        f"No roles are assigned: {counted(sentences, 'sentence')} with {counted(tokens, 'token')} {verb} read, but "
        f"roles need {thresholds.min_sentences} with {thresholds.min_tokens}. Give more text, or lower --min-sentences "
        "and --min-tokens."
    ]


@dataclass(frozen=True)
class Role:
    """A role that a head holds by its own numbers.

    Args:
        name: of the role.
        columns: of heads.csv; of several the largest counts.
        threshold: field of `Thresholds`; empty for a margin above `baselines`.
        told: what a head with this role does, with the places {share}, {n} and {where} for its numbers; of a role that
            is resting, where it rests.
        instances: column that says on how many tokens or words the share rests; empty for all tokens.
        more: whether the share has to be above the threshold ("more than half"), or may equal it.
        chance: column of the share that pointing at random gives.
        above_chance: whether that has to be passed, too.
        baselines: columns of shares of which the largest has to be passed by the margin, with what they are.
        norm: column of the share of norms that a role of weights should have, too.
        rests: whether a head with this role rests, and may do something else with the weight that is left.
    """

    name: str
    columns: tuple[str, ...]
    threshold: str
    told: str
    instances: str = ""
    more: bool = False
    chance: str = ""
    above_chance: bool = False
    baselines: Mapping[str, str] = field(default_factory=dict)
    norm: str = ""
    rests: bool = False


# Sources: Clark et al. (2019), section 3, for attention to special tokens, punctuation and neighbours, and broad heads;
# Kovaleva et al. (2019) for the diagonal; Voita et al. (2019), section 5, for positional and rare-word heads; Wang et
# al. (2022) for heads that attend to an earlier occurrence of the same token; Clark et al. (2019), section 5, for
# heads that find antecedents, above both of their baselines by the margin; Schwaller et al. (2021) for heads that
# map a text on another one, as cross-attention does from one side alone: each direction counts for itself.
ROLES = (
    Role("sink", ("to_first",), "sink", "the first token", norm="norm_to_first", rests=True),
    Role(
        "separator",
        ("to_sep", "to_eos"),
        "separator",
        "the separator or end-of-sentence token",
        norm="norm_to_special",
        rests=True,
    ),
    Role("punctuation", ("to_punct",), "punctuation", "punctuation", norm="norm_to_punct", rests=True),
    Role("self", ("self_share",), "diagonal", "attends most to the token itself for {share} of the tokens"),
    Role("positional", ("positional_share",), "positional", "attends most to {where} for {share} of the tokens"),
    Role(
        "previous", ("to_prev",), "neighbour", "gives {share} of its weight to the previous token", norm="norm_to_prev"
    ),
    Role("next", ("to_next",), "neighbour", "gives {share} of its weight to the next token", norm="norm_to_next"),
    Role(
        "pair(first->second)",
        ("first_to_second",),
        "pair",
        "gives {share} of the weight of tokens in the first text to the second text",
        "pair_tokens",
    ),
    Role(
        "pair(second->first)",
        ("second_to_first",),
        "pair",
        "gives {share} of the weight of tokens in the second text to the first text",
        "pair_tokens",
    ),
    Role(
        "same word",
        ("same_word",),
        "same_word",
        "finds another occurrence of a repeated word in {share} of {n} cases",
        "repeated_words",
        chance="same_word_chance",
        above_chance=True,
    ),
    Role(
        "coreference",
        ("coreference",),
        "",
        "finds an antecedent for {share} of {n} mentions",
        "mentions",
        baselines={
            "coreference_nearest": "choosing the nearest mention:",
            "coreference_same_word": "choosing the same word:",
        },
    ),
    Role(
        "rare",
        ("rare_top1",),
        "rare",
        "points at the rarest word for {share} of {n} words",
        "rare_words",
        more=True,
        chance="rare_chance",
    ),
    Role("broad", ("entropy_norm",), "broad", "spreads its attention, with {share} of the maximum entropy"),
)


ROLE_COLUMNS = ["stack", "role", "heads", "held", "layer", "head", "value", "score"]


class Candidate(NamedTuple):
    """A role and how near a head is to it.

    Args:
        name: the role as the table names it.
        held: whether the threshold is passed, on enough instances.
        margin: 0 at the threshold, 1 at the most that is possible.
        share: the score as a share of the threshold; of a role with baselines what it is above the largest of them, as
            a share of the margin.
        value: the score.
        by_weight: whether the head passes the threshold with its weights and not with the norms of what it reads.
        noise: whether so many heads would be as near to it by chance that it says nothing about this one.
    """

    name: str
    held: bool
    margin: float
    share: float
    value: float
    by_weight: bool = False
    noise: bool = False


def label(heads: HeadTable, syntax: HeadTable | None, thresholds: Thresholds) -> HeadTable:
    """Add the columns `role`, `roles`, `nearest`, `nearest_score` and `roles_by_weight` to the rows of heads.csv.

    `roles` lists every role a head holds, strongest first; `role` is the first. Strength is the margin over the
    threshold as a share of the largest margin possible, (value - threshold) / (1 - threshold): thresholds of 0.9 and
    of 0.5 leave very different room, so plain differences would call nearly every positional head something else.
    `nearest` is the first role too, or for a head without one the role whose threshold it comes nearest to, among
    relations only those in which it beats a fixed offset with p < 0.05, not corrected for the number of relations;
    `nearest_score` is the head's number as a share of that threshold, where a margin above baselines is asked what it
    is above them as a share of that margin. `roles_by_weight` lists the roles that a head holds by its weights alone,
    as the norms of what it reads are below the threshold (Kobayashi et al. 2020).

    Args:
        heads: with the columns of the metrics.
        syntax: with the columns `syntactic` and `significant`, which a role needs; None when there were no trees.
        thresholds: from where on.
    """
    columns: dict[str, list[Any]] = {"role": [], "roles": [], "nearest": [], "nearest_score": []}
    columns["roles_by_weight"] = []
    for candidates in _candidates(heads, syntax, thresholds):
        held = sorted((c for c in candidates if c.held), key=lambda c: -c.margin)
        nearest = held[0] if held else max((c for c in candidates if not c.noise), key=lambda c: c.share, default=None)
        columns["role"].append(held[0].name if held else "")
        columns["roles"].append("; ".join(c.name for c in held))
        columns["roles_by_weight"].append("; ".join(c.name for c in held if c.by_weight))
        columns["nearest"].append("" if nearest is None else nearest.name)
        columns["nearest_score"].append(math.nan if nearest is None else nearest.share)
    return HeadTable(heads.rows.assign(**columns))


def role_scores(heads: HeadTable, syntax: HeadTable | None, thresholds: Thresholds) -> pd.DataFrame:
    """Of every stack and role how many heads hold it, and which head comes nearest to it or is farthest above it.

    Positional heads count as one role, whatever their offset; relations and directions count as a role each.

    Args:
        heads: with the columns of the metrics.
        syntax: as for `label`.
        thresholds: from where on.

    Returns:
        Rows of roles.csv without the model: stack, role, heads (that have a number for it), held, layer and head of the
        best, its number (`value`) and its `score`, as `nearest_score` of `label`. Of equal heads the first is the best.
        It was picked on the text that it is scored on.
    """
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row, candidates in zip(heads.rows.to_dict("records"), _candidates(heads, syntax, thresholds), strict=True):
        for role in candidates:
            name = "positional" if role_family(role.name) == "positional" else role.name
            known = best.setdefault((row["stack"], name), {"heads": 0, "held": 0, "score": -math.inf})
            known |= {"heads": known["heads"] + 1, "held": known["held"] + role.held}
            if role.share > known["score"]:
                known |= {"layer": row["layer"], "head": row["head"], "value": role.value, "score": role.share}
    records = [{"stack": stack, "role": name} | known for (stack, name), known in best.items()]
    return pd.DataFrame(records, columns=ROLE_COLUMNS)


def _candidates(heads: HeadTable, syntax: HeadTable | None, thresholds: Thresholds) -> Iterator[list[Candidate]]:
    """Yields for every row of heads.csv the roles that the head has a number for, held or not."""
    syntactic: dict[tuple[Any, ...], list[Candidate]] = {}
    rows = pd.DataFrame() if syntax is None else syntax.rows
    enough = rows[(rows["n"] >= thresholds.min_instances) & np.isfinite(rows["accuracy"])] if len(rows) else rows
    for row in enough.to_dict("records"):
        value, needed = row["accuracy"], float(thresholds.syntactic(np.array(row["baseline"])))
        name = f"syntactic({row['relation']} {row['direction']})"
        # Of all heads, relations and directions some are above the margin by chance.
        held = bool(row["significant"])
        share = _of_threshold(value - row["baseline"], needed - row["baseline"])
        noise = row.get("p_value", 0.0) >= 0.05
        candidate = Candidate(name, held, _scaled(value, needed), share, value, noise=noise)
        syntactic.setdefault(tuple(row[k] for k in KEY_COLUMNS), []).append(candidate)
    for row in heads.rows.to_dict("records"):
        yield [*_own_candidates(row, thresholds), *syntactic.get(tuple(row[k] for k in KEY_COLUMNS), [])]


def _own_candidates(row: Mapping[Any, Any], thresholds: Thresholds) -> Iterator[Candidate]:
    """Yields the roles that a row of heads.csv has a number for, held or not."""
    offset = row.get("positional_offset", math.nan)
    for role in ROLES:
        values = [row[name] for name in role.columns if name in row and not math.isnan(row[name])]
        if not values:
            continue
        value = max(values)
        baseline = 0.0
        if role.baselines:
            baseline = max(row[name] for name in role.baselines)
            threshold = float(thresholds.syntactic(np.array(baseline)))
        else:
            threshold = float(getattr(thresholds, role.threshold))
        few = min(row.get(name, math.inf) for name in ("tokens", role.instances)) < thresholds.min_instances
        # Sums of shares: that 0.2 + 0.1 is a little more than 0.3 must not decide about 3 of 10.
        passed = value > threshold if role.more else value >= threshold - (1e-12 if role.baselines else 0)
        by_chance = role.above_chance and role.chance in row and value <= row[role.chance]
        name = f"positional({int(offset):+d})" if role.name == "positional" and not math.isnan(offset) else role.name
        held = passed and not few and not by_chance
        by_weight = row.get(role.norm, math.nan) < threshold
        share = _of_threshold(value - baseline, threshold - baseline)
        yield Candidate(name, held, _scaled(value, threshold), share, value, by_weight)


def _scaled(value: float, threshold: float) -> float:
    return (value - threshold) / (1 - threshold) if threshold < 1 else 0.0


def _of_threshold(value: float, threshold: float) -> float:
    return value / threshold if threshold > 0 else math.copysign(math.inf, value)


def role_family(role: str) -> str:
    """`syntactic` for `syntactic(nsubj dep->head)`; "none" for no role."""
    return role.partition("(")[0] or "none"


def count_families(heads: pd.DataFrame) -> pd.Series[int]:
    """How many heads have each role family as their strongest role."""
    return heads["role"].map(role_family).value_counts()
