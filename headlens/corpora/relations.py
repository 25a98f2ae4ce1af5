"""Names of dependency relations: one spelling for the same relation, whichever scheme a parser uses.

Words carry Universal Dependencies (UD v2) labels. English spaCy models give ClearNLP labels (Choi and Palmer
2012, with roots in Stanford Dependencies), older treebanks UD v1 labels, German spaCy models TIGER labels;
where such a label is the same relation under another name it is translated, otherwise it stays as it is. A subtype is
whatever stands behind a relation, after a colon, a hyphen or an underscore: `nsubj-pass`, `dobj:lvc`, `prep_of`.

A label is translated, never a tree. ClearNLP and TIGER trees keep their own structure:

- A preposition governs its noun: in "sat on the mat", `prep(sat, on)` and `pobj(on, mat)`, where UD has
  `obl(sat, mat)` and `case(mat, on)`. So `prep`, `pobj`, `pcomp` and `agent` have no UD counterpart and stay.
- The copula governs: in "she is clever", `nsubj(is, she)` and `acomp(is, clever)`, where UD has
  `nsubj(clever, she)` and `cop(clever, is)`. So `attr`, `acomp` and TIGER's `pd` stay.
- In TIGER the finite auxiliary governs the verb (`oc`), and all in a noun phrase hangs on the noun as `nk`.
- In UD v1 `nmod` is also what v2 calls `obl`, and coordinators hang on the first conjunct.

Subjects, objects, adjectives and adverbs of full verbs and nouns join the same words in all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from headlens.errors import listed

_UD = """
    acl advcl advmod amod appos aux case cc ccomp clf compound conj cop csubj dep det discourse dislocated expl fixed
    flat goeswith iobj list mark nmod nsubj nummod obj obl orphan parataxis punct reparandum root vocative
    xcomp
"""
# Labels of ClearNLP, Stanford, UD v1 and TIGER without a counterpart in UD v2.
_UNTRANSLATED = """
    acomp agent attr hmod hyph meta pcomp pobj pred prep prepc ref rel remnant xsubj
    ac adc ag ams avc cm cvc dh dm ju mnr mo nk nmc oc og op par pd pg ph pm pnc re rs uc
"""


def _table(text: str) -> dict[str, str]:
    return {label: name for label, _, name in (pair.partition("=") for pair in text.split())}


CLEARNLP_TO_UD = _table("""
    abbrev=appos auxpass=aux:pass complm=mark csubjpass=csubj:pass dative=iobj dobj=obj foreign=flat:foreign
    infmod=acl intj=discourse measure=obl:npmod mwe=fixed name=flat:name neg=advmod nn=compound npadvmod=obl:npmod
    nsubjpass=nsubj:pass num=nummod number=compound oprd=xcomp partmod=acl poss=nmod:poss possessive=case
    preconj=cc:preconj predet=det:predet prt=compound:prt purpcl=advcl quantmod=advmod rcmod=acl:relcl
    relcl=acl:relcl tmod=obl:tmod vmod=acl
""")
TIGER_TO_UD = _table("""
    app=appos cd=cc cj=conj cp=mark da=iobj ep=expl ng=advmod oa=obj rc=acl:relcl sb=nsubj sbp=nsubj:pass
    svp=compound:prt vo=vocative
""")
_TO_UD = CLEARNLP_TO_UD | TIGER_TO_UD
_KNOWN = frozenset([*_UD.split(), *_TO_UD, *_UNTRANSLATED.split()])
_OF_UD_1 = frozenset({"auxpass", "csubjpass", "dobj", "mwe", "nsubjpass"})
_PARTS = re.compile("([^:_-]+)[:_-](.*)", re.DOTALL)
_SHOWN = 8  # labels in a note


@lru_cache(4096)
def normalise(label: str) -> str:
    """Returns the UD v2 spelling of a relation: `dobj` is `obj`, `nsubjpass` and `nsubj-pass` are `nsubj:pass`.

    Labels are compared without case; one that no table knows comes back in lower case. Idempotent.
    """
    label = label.lower()
    parts = _PARTS.fullmatch(label)
    if parts is None or parts[1] not in _KNOWN:
        return _TO_UD.get(label, label)
    return f"{_TO_UD.get(parts[1], parts[1])}:{parts[2]}".rstrip(":")


@lru_cache(4096)
def relation_names(label: str) -> tuple[str, ...]:
    """Returns the relations that a label is one of, the widest first: `aux`, `aux:pass` for `auxpass`."""
    parts = normalise(label).split(":")
    return tuple(":".join(parts[:number]) for number in range(1, len(parts) + 1))


def base_relation(label: str) -> str:
    """Returns a relation without its subtype: `nsubj:pass` and `nsubjpass` are `nsubj`."""
    return relation_names(label)[0]


def matches(label: str, relation: str) -> bool:
    """Whether a word's label is a relation or, if this has fewer subtypes, one of its (`nsubj:pass` of `nsubj`)."""
    return normalise(relation) in relation_names(label)


def relation_of(label: str, relations: Collection[str]) -> str | None:
    """Returns which of some relations a word's label is an instance of: the narrowest; None for none of them.

    Where both are asked for, `nmod:poss` is no instance of `nmod`: what finds possessors would else seem to find
    modifiers of all kinds. A relation takes those of its subtypes that are not asked for themselves.

    Args:
        label: as the treebank writes it.
        relations: names of UD v2.
    """
    return next((name for name in reversed(relation_names(label)) if name in relations), None)


def frequent_relations(counts: Mapping[str, int], least: int) -> tuple[str, ...]:
    """The relations that have enough instances, the commonest first, each before its subtypes.

    Instances of a subtype that has enough of its own do not count for its relation, see `relation_of`. A subtype that
    all instances of its relation have is the same question twice, and left out. So are `punct`, which is attached by
    convention, and `dep`, which says that the relation is unknown.

    Args:
        counts: instances by name, subtypes under their relation, too, as in `CorpusSummary.relations`.
        least: how many are enough.
    """
    remaining, frequent = dict(counts), []
    # The narrowest first: what is taken from a relation is known before its turn.
    for name in sorted(counts, key=lambda name: -name.count(":")):
        wider = [other for other in relation_names(name)[:-1] if other in counts]
        is_all = bool(wider) and counts[name] == counts[wider[-1]]
        if remaining[name] >= least and base_relation(name) not in {"punct", "dep"} and not is_all:
            frequent.append(name)
            taken = remaining[name]
            for other in wider:
                remaining[other] -= taken
    return tuple(sorted(frequent, key=lambda name: (-counts[base_relation(name)], name)))


def label_notes(labels: Mapping[str, int], relations: Iterable[str]) -> list[str]:
    """What to know about the labels of trees: which are not those of UD v2, and which count in a wider relation.

    Args:
        labels: how many words have a label, by the label as it is written, in lower case.
        relations: those that are looked for.
    """
    relations, notes = tuple(relations), list[str]()
    present = [r for r in relations if any(matches(label, r) for label in labels)]
    read = [label for label in labels if normalise(label) != label and any(matches(label, r) for r in present)]
    if read:
        notes.append(
            "Labels of the trees read as relations of UD version 2: "
            f"{listed((f'{label} as {normalise(label)} ({labels[label]})' for label in sorted(read)), _SHOWN)}."
        )
    if wider := subtypes_in_wider(labels, relations):
        texts = [f"{name} in {relation} ({number})" for (name, relation), number in wider.items()]
        notes.append(
            f"Subtypes that are not measured by themselves count in the wider relation: {listed(texts, _SHOWN)}."
        )
    bases = {base_relation(label) for label in labels}
    if "nmod" in present and "obl" not in bases and _OF_UD_1 & labels.keys():
        notes.append("The trees predate UD version 2: their nmod includes what version 2 calls obl.")
    if "cc" in present and {"nk", "sb"} & labels.keys():
        notes.append("These are TIGER trees: their cc is a comparative complement, and only cd corresponds to UD's cc.")
    if unknown := sorted((label for label in labels if base_relation(label) not in _KNOWN), key=lambda w: -labels[w]):
        notes.append(
            f"{sum(labels[label] for label in unknown)} of {sum(labels.values())} labels of the trees belong to no "
            f"annotation scheme that headlens knows: "
            f"{listed((f'{label} ({labels[label]})' for label in unknown), _SHOWN)}. They are read as "
            "they are written, and other labels of these trees may not mean what they mean in UD."
        )
    return notes


def subtypes_in_wider(labels: Mapping[str, int], relations: Collection[str]) -> dict[tuple[str, str], int]:
    """Returns how many words of a subtype count for a wider relation, by both names, the commonest first.

    Args:
        labels: how many words have a label, by the label as it is written.
        relations: those that are looked for.
    """
    counts = Counter[tuple[str, str]]()
    for label, number in labels.items():
        name, relation = normalise(label), relation_of(label, relations)
        if relation is not None and relation != name:
            counts[name, relation] += number
    return dict(counts.most_common())
