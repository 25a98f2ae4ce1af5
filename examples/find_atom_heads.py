"""Which head of a model of chemical reactions maps atoms of the product to the atoms they come from?

The gold standard is chemical: the largest common substructures of product and reactants, found by RDKit.

Run: python examples/find_atom_heads.py MODEL REACTIONS.csv (with a column rxn; needs rdkit)
"""

import sys

import numpy as np
import pandas as pd
from rdkit import Chem
from rdkit.Chem import rdFMCS

import headlens


def origins(left: str, right: str) -> dict[int, set[int]]:
    """Find for atoms of the product those they may come from; several where a molecule is symmetric."""
    reactants, product = Chem.MolFromSmiles(left), Chem.MolFromSmiles(right)
    alike = []
    for molecule, atoms in zip(Chem.GetMolFrags(reactants, asMols=True), Chem.GetMolFrags(reactants), strict=True):
        common = rdFMCS.FindMCS([molecule, product], timeout=3, completeRingsOnly=True, ringMatchesRingOnly=True)
        if common.numAtoms >= 4 and not common.canceled:
            alike.append((common.numAtoms, common.smartsString, molecule, atoms))
    found: dict[int, set[int]] = {}
    for _, pattern, molecule, atoms in sorted(alike, key=lambda one: -one[0])[:3]:
        query = Chem.MolFromSmarts(pattern)
        inside = [own for own in product.GetSubstructMatches(query, uniquify=False) if not {*own} & found.keys()]
        for origin in molecule.GetSubstructMatches(query, uniquify=False):
            for own in inside:
                for atom, place in zip(own, origin, strict=True):
                    found.setdefault(atom, set()).add(atoms[place])
    return found if len(found) >= 0.6 * product.GetNumAtoms() else {}


def main() -> None:
    """Print how often the token of the reactants that an atom attends to most is an atom it may come from."""
    loaded, hits, atoms = headlens.load(sys.argv[1]), [], []
    for reaction in pd.read_csv(sys.argv[2])["rxn"][:300]:
        left, right = reaction.split(">>")
        known = {} if "." in right else origins(left, right)
        maps = headlens.collect_attention(loaded, [headlens.Example(headlens.Sentence(reaction, ()))])[0]
        weights, tokens = maps.weights["encoder"].numpy(), maps.labels["encoder"][0]
        middle = tokens.index(">>")  # between the special tokens at both ends
        places = [n for n, token in enumerate(tokens[1:-1], 1) if any(map(str.isalpha, token))]
        before, after = [n for n in places if n < middle], [n for n in places if n > middle]
        most = 1 + weights[..., 1:middle].argmax(-1)  # (layers, heads, queries)
        hits.append(sum(np.isin(most[..., after[a]], [before[o] for o in own]) for a, own in known.items()))
        atoms.append(len(known))
    share = np.asarray(sum(hits) / sum(atoms))
    width = 1.96 * np.sqrt(sum((own - share * n) ** 2 for own, n in zip(hits, atoms, strict=True))) / sum(atoms)
    best = [np.unravel_index(flat, share.shape) for flat in np.argsort(-share, axis=None, kind="stable")[:8]]
    rows = [("encoder.{}.{}".format(*p), share[p], share[p] - width[p], share[p] + width[p]) for p in best]
    table = pd.DataFrame(rows, columns=["head", "share", "ci_low", "ci_high"])
    print(f"{sum(atoms)} atoms of products\n{table.to_string(index=False, float_format='{:.3f}'.format)}")


if __name__ == "__main__":
    main()
