"""Names of dependency relations: one spelling for the same relation, whichever scheme a parser uses.

Words carry Universal Dependencies (UD v2) labels. English spaCy models give ClearNLP labels (Choi and Palmer
2012, with roots in Stanford Dependencies), older treebanks UD v1 labels, German spaCy models TIGER labels;
where such a label is the same relation under another name it is translated, otherwise it stays as it is.

A label is translated, never a tree. ClearNLP and TIGER trees keep their own structure:

- A preposition governs its noun: in "sat on the mat", `prep(sat, on)` and `pobj(on, mat)`, where UD has
  `obl(sat, mat)` and `case(mat, on)`. So `prep`, `pobj`, `pcomp` and `agent` have no UD counterpart and stay.
- The copula governs: in "she is clever", `nsubj(is, she)` and `acomp(is, clever)`, where UD has
  `nsubj(clever, she)` and `cop(clever, is)`. So `attr`, `acomp` and TIGER's `pd` stay.
- In TIGER the finite auxiliary governs the verb (`oc`), and all in a noun phrase hangs on the noun as `nk`.

Subjects, objects, adjectives and adverbs of full verbs and nouns join the same words in all of them.
"""

from __future__ import annotations

CLEARNLP_TO_UD = {
    "auxpass": "aux:pass",
    "csubjpass": "csubj:pass",
    "dative": "iobj",
    "dobj": "obj",
    "infmod": "acl",
    "intj": "discourse",
    "neg": "advmod",
    "nn": "compound",
    "npadvmod": "obl:npmod",
    "nsubjpass": "nsubj:pass",
    "num": "nummod",
    "oprd": "xcomp",
    "partmod": "acl",
    "poss": "nmod:poss",
    "possessive": "case",
    "preconj": "cc:preconj",
    "predet": "det:predet",
    "prt": "compound:prt",
    "quantmod": "advmod",
    "rcmod": "acl:relcl",
    "relcl": "acl:relcl",
    "tmod": "obl:tmod",
}

TIGER_TO_UD = {
    "app": "appos",
    "cd": "cc",
    "cj": "conj",
    "cp": "mark",
    "da": "iobj",
    "ep": "expl",
    "ng": "advmod",
    "oa": "obj",
    "rc": "acl:relcl",
    "sb": "nsubj",
    "sbp": "nsubj:pass",
    "svp": "compound:prt",
    "vo": "vocative",
}

_TO_UD = CLEARNLP_TO_UD | TIGER_TO_UD


def normalise(label: str) -> str:
    """Returns the UD v2 spelling of a relation: `dobj` and `obj` are `obj`, `nsubjpass` is `nsubj:pass`.

    Labels are compared without case; one that no table knows comes back in lower case. Idempotent.
    """
    label = label.lower()
    return _TO_UD.get(label, label)


def base_relation(label: str) -> str:
    """Returns a relation without its subtype: `nsubj:pass` and `nsubjpass` are `nsubj`."""
    return normalise(label).partition(":")[0]


def matches(label: str, relation: str) -> bool:
    """Whether a word's label is a relation or, if this has no subtype, a subtype of it (`nsubj:pass` of `nsubj`)."""
    return normalise(relation) in (normalise(label), base_relation(label))
