"""Checks a treebank by the rules of Universal Dependencies and compares it with a reference treebank.

    python tests/treebank_checks.py demo.conllu --reference en_ewt-ud-train.conllu en_ewt-ud-dev.conllu

Prints every fault (format, text, tree, leaves, directions, classes of words, punctuation, mentions), then size, lengths
and the share of the commonest offset of the commonest relations, beside those of the reference. Exits with 1 when
there are faults. The reference also gives the closed lists of tags, features and relations.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import mean, quantiles
from typing import NamedTuple

MAX_OFFSET = 10
MIN_INSTANCES = 30
N_RELATIONS = 15

# Relations between a function word and its head: what may depend on the function word.
LEAF_CHILDREN = {
    "case": "fixed goeswith conj cc punct advmod obl nmod reparandum",
    "mark": "fixed goeswith conj cc punct advmod obl reparandum",
    "aux": "fixed goeswith conj cc punct reparandum",
    "cop": "fixed goeswith conj cc punct reparandum",
    "cc": "fixed goeswith conj cc punct reparandum",
    "det": "fixed goeswith conj cc punct advmod reparandum case nmod obl det",
    "fixed": "goeswith conj punct reparandum",
    "punct": "",
}
# Relations whose head always stands to the left of the dependent.
RIGHTWARD = {"conj", "fixed", "flat", "goeswith", "appos"}
RELATION_UPOS = {
    "det": "DET PRON",
    "nummod": "NUM NOUN SYM",
    "advmod": "ADV ADJ CCONJ DET PART SYM",
    "expl": "PRON DET PART",
    "aux": "AUX",
    "cop": "AUX PRON DET SYM",
    "case": "ADP ADV SCONJ PART VERB CCONJ SYM NOUN ADJ",
    "mark": "SCONJ ADP ADV PART ADJ CCONJ",
    "cc": "CCONJ ADV ADP PART ADJ VERB",
    "punct": "PUNCT",
}
ONCE_PER_HEAD = {"subject": {"nsubj", "csubj"}, "object": {"obj"}, "indirect object": {"iobj"}, "copula": {"cop"}}
# Attributes of a mention (`# global.Entity = eid-etype-head-other`), and the types of entities, which are those of GUM.
N_ATTRIBUTES = 4
ENTITY_TYPES = {
    *("abstract", "animal", "event", "object", "organization"),
    *("person", "place", "plant", "substance", "time"),
}
ENTITY_PART = re.compile(r"\((?P<opened>[^()]+)(?P<single>\))?|(?P<closed>[^()]+)\)")


class Word(NamedTuple):
    """A syntactic word: its ten columns, head as a number."""

    id: int
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: str
    head: int
    relation: str
    misc: str

    @property
    def basic_relation(self) -> str:
        """The relation without its subtype."""
        return self.relation.split(":")[0]


class Tree(NamedTuple):
    """A sentence: its comments, its words and its surface tokens as (form, whether a space follows)."""

    comments: dict[str, str]
    words: list[Word]
    tokens: list[tuple[str, bool]]

    @property
    def name(self) -> str:
        """The identifier of the sentence."""
        return self.comments.get("sent_id", "?")

    def span(self, word: int) -> set[int]:
        """The words below a word, itself included."""
        found = {word}
        grown = True
        while grown:
            new = {w.id for w in self.words if w.head in found} - found
            found |= new
            grown = bool(new)
        return found


def read_trees(path: Path) -> Iterator[Tree]:
    """Reads a CoNLL-U file; columns and numbers are checked by `format_faults` before."""
    for block in path.read_text(encoding="utf-8").strip("\n").split("\n\n"):
        lines = block.split("\n")
        comments = {
            key.strip(): value.strip()
            for key, _, value in (line[1:].partition("=") for line in lines if line.startswith("#"))
        }
        words: list[Word] = []
        tokens: list[tuple[str, bool]] = []
        covered = 0
        for line in lines:
            if line.startswith("#"):
                continue
            columns = line.split("\t")
            has_space = "SpaceAfter=No" not in columns[9].split("|")
            if "-" in columns[0]:
                tokens.append((columns[1], has_space))
                covered = int(columns[0].split("-")[1])
            elif "." not in columns[0]:
                number = int(columns[0])
                if number > covered:
                    tokens.append((columns[1], has_space))
                form, lemma, upos, xpos, feats = columns[1:6]
                words.append(Word(number, form, lemma, upos, xpos, feats, int(columns[6]), columns[7], columns[9]))
        yield Tree(comments, words, tokens)


def format_faults(path: Path) -> Iterator[str]:
    """Faults of lines: columns, empty fields, order of ids, heads that are no number, order of features."""
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n\n"):
        yield "the file does not end with an empty line"
    previous = 0
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            previous = 0
        if not line or line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) != 10 or not all(columns) or any(c != c.strip() for c in columns):
            yield f"line {number}: not ten full columns"
        elif "-" in columns[0]:
            first, last = map(int, columns[0].split("-"))
            if first != previous + 1 or last <= first or columns[2:9] != ["_"] * 7:
                yield f"line {number}: a wrong multiword token"
        elif not columns[0].isdigit() or int(columns[0]) != previous + 1 or not columns[6].isdigit():
            yield f"line {number}: a wrong id or head"
        else:
            previous += 1
            names = [feature.split("=")[0] for feature in columns[5].split("|")]
            if names != sorted(names, key=str.lower) or len(set(names)) < len(names):
                yield f"line {number}: features out of order"


def tree_faults(tree: Tree) -> Iterator[str]:
    """Faults of a tree: text, root, range of heads, cycles."""
    text = "".join(form + " " * has_space for form, has_space in tree.tokens).rstrip()
    if text != tree.comments.get("text"):
        yield f"text differs from tokens: {text!r}"
    if sum(w.head == 0 for w in tree.words) != 1:
        yield "not one root"
    for w in tree.words:
        if (w.head == 0) != (w.relation == "root"):
            yield f"{w.id} {w.form}: root and head 0 do not go together"
        if w.head > len(tree.words) or w.head == w.id:
            yield f"{w.id} {w.form}: head out of range"
    reached = {0}.union(*(tree.span(w.id) for w in tree.words if w.head == 0))
    if len(reached) <= len(tree.words):
        yield "a cycle"


def relation_faults(tree: Tree) -> Iterator[str]:
    """Faults of relations: leaves, directions, classes of words, relations that a head has only once."""
    for w in tree.words:
        relation = w.basic_relation
        children = [c for c in tree.words if c.head == w.id]
        if relation in LEAF_CHILDREN:
            allowed = LEAF_CHILDREN[relation].split()
            for child in children:
                if child.basic_relation not in allowed:
                    yield f"{w.id} {w.form}: {relation} has the child {child.form} ({child.relation})"
        if relation in RIGHTWARD and w.head > w.id:
            yield f"{w.id} {w.form}: {relation} stands before its head"
        # The relation of a fixed expression is that of the whole (`ExtPos`), not of its first word.
        is_whole = any(c.basic_relation in {"fixed", "goeswith"} for c in children) or "ExtPos=" in w.feats
        if relation in RELATION_UPOS and not is_whole and w.upos not in RELATION_UPOS[relation].split():
            yield f"{w.id} {w.form}: {relation} with {w.upos}"
        if w.upos == "PUNCT" and relation not in {"punct", "root"}:
            yield f"{w.id} {w.form}: PUNCT with {relation}"
        for what, relations in ONCE_PER_HEAD.items():
            found = [c for c in children if c.basic_relation in relations and not c.relation.endswith(":outer")]
            if len(found) > 1:
                yield f"{w.id} {w.form}: {len(found)} times {what}"


def is_projective(tree: Tree, word: Word) -> bool:
    """Whether all words between a word and its head are below the head."""
    if word.head == 0:
        return True
    low, high = sorted((word.id, word.head))
    return set(range(low + 1, high)) <= tree.span(word.head)


def punctuation_faults(tree: Tree) -> Iterator[str]:
    """Punctuation that crosses arcs, or that other arcs cross because of it."""
    for w in tree.words:
        if w.relation != "punct":
            continue
        if not is_projective(tree, w):
            yield f"{w.id} {w.form}: punctuation attached across other arcs"
        for other in tree.words:
            low, high = sorted((other.id, other.head))
            is_above = w.id in tree.span(other.head) if other.head else True
            if other.head and low < w.id < high and not is_above:
                yield f"{w.id} {w.form}: punctuation makes the arc of {other.id} {other.form} cross"


def list_faults(tree: Tree, known: dict[str, set[str]]) -> Iterator[str]:
    """Tags, features and relations that the reference does not know."""
    for w in tree.words:
        for name, values in (
            ("upos", {w.upos}),
            ("xpos", {w.xpos}),
            ("relation", {w.relation}),
            ("feature", set(w.feats.split("|"))),
        ):
            for value in sorted(values - known[name]):
                yield f"{w.id} {w.form}: unknown {name} {value}"


class Mention(NamedTuple):
    """A mention of an entity: name, type and number of the head as they are written; sentence, first and last word."""

    entity: str
    kind: str
    head: str
    sentence: int
    first: int
    last: int


def read_mentions(trees: Sequence[Tree]) -> tuple[list[Mention], list[str]]:
    """The mentions in `Entity=` of the MISC column, and their faults by the rules of CorefUD."""
    mentions: list[Mention] = []
    faults: list[str] = []
    for index, tree in enumerate(trees):
        opened: list[tuple[list[str], int]] = []
        for w in tree.words:
            value = "".join(value[7:] for value in w.misc.split("|") if value.startswith("Entity="))
            if ENTITY_PART.sub("", value):
                faults.append(f"{tree.name} {w.id}: {value} is not made of brackets alone")
            for part in ENTITY_PART.finditer(value):
                if part["opened"]:
                    attributes = part["opened"].split("-")
                    if len(attributes) != N_ATTRIBUTES:
                        faults.append(f"{tree.name} {w.id}: {part['opened']} has not {N_ATTRIBUTES} attributes")
                    opened.append(((attributes + [""] * N_ATTRIBUTES)[:3], w.id))
                if part["closed"] and (not opened or opened[-1][0][0] != part["closed"]):
                    faults.append(f"{tree.name} {w.id}: bracket of {part['closed']} closed but not the last opened")
                elif part["closed"] or part["single"]:
                    (entity, kind, head), first = opened.pop()
                    mentions.append(Mention(entity, kind, head, index, first, w.id))
        faults.extend(f"{tree.name}: bracket of {entity} is not closed" for (entity, _, _), _ in opened)
    return mentions, [*faults, *mention_faults(trees, mentions)]


def mention_faults(trees: Sequence[Tree], mentions: Iterable[Mention]) -> Iterator[str]:
    """Faults of types, heads, spans and documents; no span is a mention of two entities, which CorefUD leaves open."""
    types: dict[str, str] = {}
    spans: set[tuple[int, int, int]] = set()
    documents = list(accumulate("newdoc id" in tree.comments for tree in trees))
    document_of: dict[str, int] = {}
    for entity, kind, head, index, first, last in mentions:
        place = f"{trees[index].name} {first}"
        if types.setdefault(entity, kind) != kind:
            yield f"{place}: {entity} is {types[entity]} and {kind}"
        if kind not in ENTITY_TYPES:
            yield f"{place}: unknown type {kind} of {entity}"
        inside = range(first, last + 1)
        if head not in {str(k) for k, i in enumerate(inside, 1) if trees[index].words[i - 1].head not in inside}:
            yield f"{place}: {head} is no head of the mention of {entity}"
        if (index, first, last) in spans:
            yield f"{place}: the mention of {entity} is one of another entity, too"
        spans.add((index, first, last))
        if document_of.setdefault(entity, documents[index]) != documents[index]:
            yield f"{place}: {entity} stands in another document, too"


def offset_shares(trees: Iterable[Tree]) -> dict[str, tuple[int, int, float]]:
    """For every basic relation: instances, the commonest offset from dependent to head, its share of them.

    The offset from head to dependent is the same with the other sign, and so is its share.
    """
    offsets: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for tree in trees:
        for w in tree.words:
            if w.head:
                offsets[w.basic_relation][w.head - w.id] += 1
    shares = {}
    for relation, counts in sorted(offsets.items(), key=lambda item: -item[1].total()):
        near = {o: n for o, n in counts.items() if abs(o) <= MAX_OFFSET}
        offset = max(near, key=lambda o: (near[o], -abs(o)), default=0)
        shares[relation] = (counts.total(), offset, near.get(offset, 0) / counts.total())
    return shares


def describe(trees: Sequence[Tree]) -> str:
    """Numbers of documents, sentences and words, and how long sentences are."""
    lengths = [len(tree.words) for tree in trees]
    cuts = quantiles(lengths, n=20)
    spread = " ".join(f"{cuts[k]:.0f}" for k in (0, 1, 4, 9, 14, 17, 18))
    documents = sum("newdoc id" in tree.comments for tree in trees)
    tokens = sum(len(tree.tokens) for tree in trees)
    return (
        f"{documents} documents, {len(trees)} sentences, {sum(lengths)} words, {tokens} tokens; words a sentence: "
        f"mean {mean(lengths):.1f}, from {min(lengths)} to {max(lengths)}; "
        f"5, 10, 25, 50, 75, 90, 95 % of sentences: {spread}"
    )


def faults_of(path: Path, reference: Sequence[Tree]) -> list[str]:
    """All faults of a treebank; the closed lists come from the reference where there is one."""
    faults = list(format_faults(path))
    if faults:
        return faults
    trees = list(read_trees(path))
    known = {
        "upos": {w.upos for t in reference for w in t.words},
        "xpos": {w.xpos for t in reference for w in t.words},
        "relation": {w.relation for t in reference for w in t.words},
        "feature": {f for t in reference for w in t.words for f in w.feats.split("|")},
    }
    for tree in trees:
        broken = list(tree_faults(tree))
        found = broken or [*relation_faults(tree), *punctuation_faults(tree)]
        if reference:
            found += list_faults(tree, known)
        faults.extend(f"{tree.name}: {fault}" for fault in found)
    names = Counter(tree.name for tree in trees)
    faults.extend(f"{name}: the identifier stands {n} times" for name, n in names.items() if n > 1)
    return faults + read_mentions(trees)[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints faults and statistics; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("treebank", type=Path)
    parser.add_argument("--reference", type=Path, nargs="*", default=[], help="files of the reference treebank")
    options = parser.parse_args(arguments)
    reference = [tree for path in options.reference for tree in read_trees(path)]
    faults = faults_of(options.treebank, reference)
    lines = [*faults, f"{len(faults)} faults"]
    trees = list(read_trees(options.treebank))
    lines.append(describe(trees))
    if reference:
        lines.append(f"reference: {describe(reference)}")
    crossing = sum(not is_projective(tree, w) for tree in trees for w in tree.words)
    mentions, words = read_mentions(trees)[0], sum(len(tree.words) for tree in trees)
    by_entity = Counter(mention.entity for mention in mentions)
    chains = sum(n > 1 for n in by_entity.values())
    lines.append(f"{crossing} crossing arcs; {len(mentions)} mentions of {len(by_entity)} entities, {chains} chains")
    lines.append(f"{len(by_entity) - chains} entities are mentioned once; {len(mentions) / words:.2f} mentions a word")
    ours, theirs = offset_shares(trees), offset_shares(reference)
    lines.append(f"{'relation':12}{'instances':>10}{'offset':>8}{'share':>7}{'reference':>11}{'difference':>12}")
    ranks = list(theirs or ours)[:N_RELATIONS]
    for relation, (count, offset, share) in ours.items():
        if count < MIN_INSTANCES:
            continue
        row = f"{relation:12}{count:>10}{offset:>+8}{share:>7.3f}"
        if relation in theirs:
            difference = share - theirs[relation][2]
            is_far = relation in ranks and abs(difference) > 0.05
            row += f"{theirs[relation][2]:>11.3f}{difference:>+12.3f}{' far' if is_far else ''}"
        lines.append(row)
    sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
