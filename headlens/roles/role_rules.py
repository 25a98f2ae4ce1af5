"""From measures to labels (Voita et al. 2019, section 5; Clark et al. 2019, section 3)."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from headlens.errors import counted
from headlens.heads import KEY_COLUMNS, STACKS, HeadTable
from headlens.pages.page_tables import number_cell
from headlens.plots.head_grid import by_model_and_stack, head_name
from headlens.roles.even_attention import (
    EVEN,
    EVEN_HEADS,
    ROUNDING,
    even_heads,
    even_sentence,
    in_stacks,
    is_even,
    uniform_heads,
)
from headlens.roles.role_options import Thresholds
from headlens.roles.syntax_verdicts import verdicts
from headlens.statistics.non_inferiority import LEVEL
from headlens.tables.classify_tables import SCORES_OF_ROLES

Marks = npt.NDArray[np.bool_]
MOST_NAMED = 6  # heads of a note


def mark_syntactic(syntax: HeadTable, thresholds: Thresholds) -> HeadTable:
    """Add the columns `syntactic`, `significant`, `needed` and `verdict` to the rows of syntax.csv.

    `syntactic` asks for the accuracy that is `needed`, that of the baseline and the margin, on enough instances;
    `significant` for p_holm < 0.05, too; `verdict` says whether the head follows the relation, and if not, why.
    """
    rows = syntax.rows
    enough = rows["n"] >= thresholds.min_instances
    needed = thresholds.syntactic(rows["baseline"].to_numpy())
    # Counts are whole: that 0.2 + 0.1 is a little more than 0.3 must not decide about 3 of 10.
    syntactic = enough & (rows["accuracy"] >= needed - 1e-12)
    rows = rows.assign(syntactic=syntactic, significant=syntactic & (rows["p_holm"] < LEVEL))
    rows = rows[sorted(rows.columns, key=lambda name: name == "accuracy_null")].assign(needed=needed)
    return HeadTable(rows.assign(verdict=verdicts(rows, thresholds.min_instances)))


def too_little_notes(sentences: int, tokens: int, thresholds: Thresholds, *, may_cut: bool = False) -> list[str]:
    """The note on a corpus of which too few sentences or tokens were read to give any head a role; none if enough.

    Args:
        sentences: how many were read.
        tokens: how many they have.
        thresholds: how many roles need.
        may_cut: whether long sentences could be cut into windows, each of which counts as one.
    """
    if sentences >= thresholds.min_sentences and tokens >= thresholds.min_tokens:
        return []
    verb = "was" if sentences == 1 else "were"
    cut = may_cut and tokens >= thresholds.min_tokens
    advice = " --data-args long-sentences=window reads long texts in parts." * cut
    return [
        f"No roles are assigned: {counted(sentences, 'sentence')} with {counted(tokens, 'token')} {verb} read, but "
        f"roles need {thresholds.min_sentences} with {thresholds.min_tokens}. Give more text, or lower them: "
        f"--thresholds min-sentences=…,min-tokens=….{advice}"
    ]


def null_notes(heads: pd.DataFrame, roles: pd.DataFrame) -> list[str]:
    """Notes on the null head: whether the heads are like it, which are the same, and which thresholds it would pass.

    Args:
        heads: rows of heads.csv of one model.
        roles: rows of roles.csv.
    """
    parts = [(part.stack, part.rows) for part in by_model_and_stack(heads.assign(model=""))]
    even = [(f"{stack}: " if len(parts) > 1 else "", even_sentence(rows)) for stack, rows in parts if is_even(rows)]
    notes = [where + (text if where else text[0].upper() + text[1:]) for where, text in even]
    if uniform := [head_name(row) for row in heads[uniform_heads(heads)].to_dict("records")]:
        names = ", ".join(uniform[:MOST_NAMED]) + ", …" * (len(uniform) > MOST_NAMED)
        notes.append(
            f"{counted(len(uniform), 'head')} {'attends' if len(uniform) == 1 else 'attend'} uniformly ({names}): all "
            "tokens tie, and the first one counts as the most attended. Offsets and shares of what is attended to most "
            f"tell nothing of {'it' if len(uniform) == 1 else 'them'}; uniform attention has them with ties shared."
        )
    passed = roles[(roles["null"] >= roles["needed"]) & (roles["role"] != "broad")]
    sure = " significantly"  # what `above_threshold` counts of syntactic roles
    shares = [
        row["role"] + f" in {row['stack']}" * (len(parts) > 1) + f" ({row['null']:.2f}, threshold {row['needed']:.2f}; "
        f"{row['above_threshold']} of {row['heads']} heads pass that{sure * (role_family(row['role']) == 'syntactic')} "
        f"and {row['held']} {'holds' if row['held'] == 1 else 'hold'} the role)"
        for row in passed.to_dict("records")
    ]
    if shares:
        notes.append(
            f"On this text uniform attention passes the threshold of {'; '.join(shares)}. A head has a role only if "
            "its interval is above what uniform attention has."
        )
    return notes


@dataclass(frozen=True)
class Role:
    """A role that a head holds by its own numbers.

    Args:
        name: of the role.
        columns: of heads.csv; of several the largest counts.
        description: what a head with this role does, with the places {share}, {n} and {where} for its numbers; of a
            role that is resting, where it rests.
        threshold: field of `Thresholds`, if it does not have the name of the role; of no use beside `baselines`.
        instances: column that says on how many tokens or words the share rests; empty for all tokens.
        more: whether the share has to be above the threshold ("more than half"), or may equal it.
        chance: column of the share that pointing at random gives.
        above_chance: whether that has to be passed, too.
        baselines: columns of shares of which the largest has to be passed by the margin, with what they are.
        test: column of the p-value of the difference from the largest of them, which has to be significant after the
            correction in the column of `corrected`.
        corrected: see `test`.
        norm: column of the share of norms that a role of weights should have, too.
        rests: whether a head with this role rests, and may do something else with the weight that is left.
        even: from which share of uniform attention's on it is that of a head which spreads its attention evenly, and
            says nothing else; of the other roles a head has to be above the null head, see
            `headlens.metrics.metric.Metric.null`.
    """

    name: str
    columns: tuple[str, ...]
    description: str
    threshold: str = ""
    instances: str = ""
    more: bool = False
    chance: str = ""
    above_chance: bool = False
    baselines: Mapping[str, str] = field(default_factory=dict)
    test: str = ""
    corrected: str = ""
    norm: str = ""
    rests: bool = False
    even: float = math.inf


# Sources: Clark et al. (2019), section 3, for attention to special tokens, punctuation and neighbours, and broad heads;
# Kovaleva et al. (2019) for the diagonal; Voita et al. (2019), section 5, for positional and rare-word heads; Wang et
# al. (2022) for heads that attend to an earlier occurrence of the same token; Clark et al. (2019), section 5, for
# heads that find antecedents, above both of their baselines by the margin; Schwaller et al. (2021) for heads that
# map a text on another one, as cross-attention does from one side alone: each direction counts for itself.
ROLES = (
    Role("sink", ("to_first",), "the first token", norm="norm_to_first", rests=True),
    Role(
        "separator", ("to_sep", "to_eos"), "the separator or end-of-sentence token", norm="norm_to_special", rests=True
    ),
    Role("punctuation", ("to_punct",), "punctuation", norm="norm_to_punct", rests=True),
    Role("self", ("self_share",), "attends most to the token itself for {share} of the tokens", "diagonal"),
    Role("positional", ("positional_share",), "attends most to {where} for {share} of the tokens"),
    Role(
        "previous", ("to_prev",), "gives {share} of its weight to the previous token", "neighbour", norm="norm_to_prev"
    ),
    Role("next", ("to_next",), "gives {share} of its weight to the next token", "neighbour", norm="norm_to_next"),
    *(
        Role(
            f"pair({one}->{other})",
            (f"{one}_to_{other}",),
            f"gives {{share}} of the weight of tokens in the {one} text to the {other} text",
            "pair",
            "pair_tokens",
        )
        for one, other in (("first", "second"), ("second", "first"))
    ),
    Role(
        "same word",
        ("same_word",),
        "finds another occurrence of a repeated word in {share} of {n} cases",
        "same_word",
        "repeated_words",
        chance="same_word_chance",
        above_chance=True,
    ),
    Role(
        "coreference",
        ("coreference",),
        "finds an antecedent for {share} of {n} mentions",
        instances="mentions",
        baselines={
            "coreference_nearest": "choosing the nearest mention",
            "coreference_same_word": "choosing the same word",
        },
        test="coreference_p_value",
        corrected="coreference_p_holm",
    ),
    Role(
        "rare",
        ("rare_top1",),
        "points at the rarest word for {share} of {n} words",
        instances="rare_words",
        more=True,
        chance="rare_chance",
    ),
    Role("broad", ("entropy_norm",), "spreads its attention, with {share} of the maximum entropy", even=EVEN),
)


class Candidate(NamedTuple):
    """A role and how near a head is to it.

    Args:
        name: the role as the table names it.
        held: whether the threshold is passed on enough instances, and the interval is above what the null head has.
        margin: 0 at the threshold, 1 at the most that is possible.
        share: the score as a share of the threshold; of a role with baselines what it is above the largest of them, as
            a share of the margin.
        value: the score.
        needed: the threshold; of a role with baselines the largest of them with the margin.
        null: the score of the null head, NaN where it is not known.
        passed: whether the threshold is passed on enough instances, whatever the null head has.
        by_weight: whether the head passes the threshold with its weights and not with the norms of what it reads.
        noise: whether it says nothing about this head, as uniform attention has as much, or so many heads would be as
            near to it by chance.
    """

    name: str
    held: bool
    margin: float
    share: float
    value: float
    needed: float
    null: float
    passed: bool
    by_weight: bool = False
    noise: bool = False


def label(heads: HeadTable, syntax: HeadTable | None, thresholds: Thresholds) -> HeadTable:
    """Add the columns `role`, `roles`, `nearest`, `nearest_score` and `roles_by_weight` to the rows of heads.csv.

    `roles` lists every role a head holds, strongest first; `role` is the first. Strength is the margin over the
    threshold as a share of the largest margin possible, (value - threshold) / (1 - threshold): thresholds of 0.9 and
    of 0.5 leave very different room, so plain differences would call nearly every positional head something else.
    `nearest` is the first role too, or for a head without one the role whose threshold it comes nearest to, of those
    on whose measure it is above the null head, and among relations only those in which it beats a fixed offset with
    p < 0.05, not corrected for the number of relations (coreference likewise); empty where there is none, and for
    heads that spread their attention evenly. `nearest_score` is the head's number as a share of that threshold, where a
    margin above baselines is asked what it is above them as a share of that margin. `roles_by_weight` lists the roles
    that a head holds by its weights alone, as the norms of what it reads are below the threshold (Kobayashi et al.
    2020).

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
    """How many heads of every stack hold each role, and which head is nearest to its threshold or farthest above it.

    Positional heads count as one role, whatever their offset; relations and directions count as a role each.

    Args:
        heads: with the columns of the metrics.
        syntax: as for `label`.
        thresholds: from where on.

    Returns:
        Rows of roles.csv without the model: stack, role, heads (that have a number for it), held, layer and head of the
        best (of those that hold the role, if any do), its number (`value`) and its `score`, as `nearest_score` of
        `label`; the threshold (`needed`), what the null head has (`null`), and how many heads pass the threshold,
        whatever that is (`above_threshold`). Of equal heads the first is the best. It was picked on the text that it is
        scored on. A role without a finite threshold has no row.
    """
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for row, candidates in zip(heads.rows.to_dict("records"), _candidates(heads, syntax, thresholds), strict=True):
        for role in candidates:
            name = "positional" if role_family(role.name) == "positional" else role.name
            known = best.setdefault(
                (row["stack"], name), {"heads": 0, "held": 0, "score": -math.inf, "by_holder": False}
            )
            passed = known.get("above_threshold", 0) + role.passed
            known |= {"heads": known["heads"] + 1, "held": known["held"] + role.held, "above_threshold": passed}
            if (role.held, role.share) > (known["by_holder"], known["score"]):
                known |= {"by_holder": role.held}
                known |= {"layer": row["layer"], "head": row["head"], "value": role.value, "score": role.share}
                known |= {"needed": role.needed, "null": role.null}
    records = [{"stack": stack, "role": name} | known for (stack, name), known in best.items()]
    return pd.DataFrame(records, columns=SCORES_OF_ROLES.names[1:])


def _candidates(heads: HeadTable, syntax: HeadTable | None, thresholds: Thresholds) -> Iterator[list[Candidate]]:
    """Yields for every row of heads.csv the roles that the head has a number for, held or not."""
    syntactic: dict[tuple[Any, ...], list[Candidate]] = {}
    for row in [] if syntax is None else syntax.rows.to_dict("records"):
        if not (row["n"] >= thresholds.min_instances and math.isfinite(row["accuracy"])):
            continue
        value, needed = row["accuracy"], float(thresholds.syntactic(np.array(row["baseline"])))
        name = f"syntactic({row['relation']} {row['direction']})"
        share = _of_threshold(value - row["baseline"], needed - row["baseline"])
        # Of all heads, relations and directions some are above the margin by chance.
        passed, by_chance = bool(row["significant"]), row.get("p_value", 0.0) >= LEVEL
        null = float(row.get("accuracy_null", math.nan))
        noise = by_chance or not above_null(value, null)
        held = passed and above_null(row.get("ci_low", value), null)
        measured = (value, needed, null, passed)
        candidate = Candidate(name, held, _scaled(value, needed), share, *measured, noise=noise)
        syntactic.setdefault(tuple(row[k] for k in KEY_COLUMNS), []).append(candidate)
    kinds = zip(heads.rows.to_dict("records"), uniform_heads(heads.rows), even_heads(heads.rows), strict=True)
    for row, equal, even in kinds:
        candidates = [*_own_candidates(row, thresholds), *syntactic.get(tuple(row[k] for k in KEY_COLUMNS), [])]
        # Of equal weights the order of the tokens decides what a head points at, and of nearly equal ones noise.
        yield [c._replace(held=c.held and not equal, noise=c.noise or even) for c in candidates]


def _own_candidates(row: Mapping[Any, Any], thresholds: Thresholds) -> Iterator[Candidate]:
    """Yields the roles that a row of heads.csv has a number for, held or not."""
    offset = row.get("positional_offset", math.nan)
    for role in ROLES:
        values = [(row[name], name) for name in role.columns if name in row and not math.isnan(row[name])]
        if not values:
            continue
        value, column = max(values)
        baseline = max((row[name] for name in role.baselines), default=0.0)
        field_name = role.threshold or role.name
        above = thresholds.syntactic(np.array(baseline)) if role.baselines else getattr(thresholds, field_name)
        threshold = float(above)
        if math.isinf(threshold):  # which words are rare is not known, see `classify_heads`
            continue
        few = min(row.get(name, math.inf) for name in ("tokens", role.instances)) < thresholds.min_instances
        # Sums of shares: that 0.2 + 0.1 is a little more than 0.3 must not decide about 3 of 10.
        passed = value > threshold if role.more else value >= threshold - (1e-12 if role.baselines else 0)
        by_chance = role.above_chance and role.chance in row and value <= row[role.chance]
        name = f"positional({int(offset):+d})" if role.name == "positional" and not math.isnan(offset) else role.name
        passed = passed and not few and not by_chance
        null, low = row.get(f"{column}_null", math.nan), row.get(f"{column}_ci_low", value)
        # Nothing spreads its attention more than uniform attention does.
        spreads = math.isfinite(role.even)
        held = passed and (value < role.even * min(1.0, null) if spreads else above_null(low, null))
        # Mentions of a sentence are not independent, which the interval knows; of all heads some are above the margin
        # by chance, which the correction does.
        held = held and not (role.baselines and low <= baseline) and not row.get(role.corrected, 0.0) >= LEVEL
        noise = row.get(role.test, 0.0) >= LEVEL or not (spreads or above_null(value, null))
        by_weight = row.get(role.norm, math.nan) < threshold
        share = _of_threshold(value - baseline, threshold - baseline)
        measured = (value, threshold, null, passed, by_weight, noise)
        yield Candidate(name, held, _scaled(value, threshold), share, *measured)


def above_null(low: float, null: float) -> bool:
    """Whether a number is above what the null head has by more than rounding; also where that is not known."""
    return math.isnan(null) or math.isnan(low) or low > null + ROUNDING


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


def role_records(roles: pd.DataFrame, even: Collection[tuple[str, str]] = ()) -> list[dict[str, Any]]:
    """Returns every role that some model holds with the heads that hold it and the best head, model by model.

    Args:
        roles: rows of roles.csv of several models.
        even: model and name of stacks, see `even_stacks`, of which a head is named only for a role that it holds.

    Returns:
        Records of a table: by stack, then the roles that the most models hold first; models in order of appearance.
    """
    held = roles.assign(models=roles["held"] > 0).groupby(["stack", "role"])[["models", "held"]].transform("sum")
    shown = roles.assign(place=roles["stack"].map(STACKS.index), models=held["models"], all=held["held"])
    order = {"place": True, "models": False, "all": False, "role": True}
    shown = shown[shown["models"] > 0].sort_values(list(order), ascending=list(order.values()), kind="stable")
    shown = shown.assign(unnamed=in_stacks(shown, even) & (shown["held"] == 0))
    return [
        {name: row[name] for name in ("stack", "role", "model")}
        | {
            # A score of 1 reaches what is needed; a role with a test asks for more.
            "held by": f"{row['held']:.0f} of {row['heads']:.0f}"
            + " (n.s.)" * bool(row["held"] == 0 and row["score"] >= 1 and not row["unnamed"]),
            "best head": EVEN_HEADS if row["unnamed"] else head_name(row),
        }
        | {"its value": number_cell(row["value"]), "needed": number_cell(row.get("needed", math.nan))}
        | {"score": number_cell(row["score"])}
        | {"uniform attention": number_cell(row.get("null", math.nan))}
        for row in shown.to_dict("records")
    ]
