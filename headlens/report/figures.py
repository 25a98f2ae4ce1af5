"""Every figure headlens draws, by name.

Each function takes tables with the columns of the CSV files and returns a `matplotlib.figure.Figure`, or None
when there is nothing to draw. Nothing here writes: `RunFolder.figure` and `write_figure` do.
"""

from headlens.report.ablation_map import ablation_map, side_by_side
from headlens.report.attend import attention_maps
from headlens.report.bars import mass_bars
from headlens.report.best import best_heads_table
from headlens.report.cells import Scale
from headlens.report.functions import function_map
from headlens.report.gate_counts import kept_by_layer
from headlens.report.gate_film import gate_films
from headlens.report.gate_maps import gate_maps
from headlens.report.gate_quality import gate_quality
from headlens.report.heatmaps import confidence_map, entropy_map, head_map, paired_maps, rare_map
from headlens.report.positions import offset_profile, positional_map
from headlens.report.pruning_curve import pruning_curve
from headlens.report.relevance_intervals import relevance_intervals
from headlens.report.relevance_map import relevance_map
from headlens.report.relevance_scatter import confidence_against_relevance, rule_agreement
from headlens.report.roles_kept import roles_kept
from headlens.report.similarity import similarity_map
from headlens.report.syntax import best_heads, syntactic_map

__all__ = [
    "Scale",
    "ablation_map",
    "attention_maps",
    "best_heads",
    "best_heads_table",
    "confidence_against_relevance",
    "confidence_map",
    "entropy_map",
    "function_map",
    "gate_films",
    "gate_maps",
    "gate_quality",
    "head_map",
    "kept_by_layer",
    "mass_bars",
    "offset_profile",
    "paired_maps",
    "positional_map",
    "pruning_curve",
    "rare_map",
    "relevance_intervals",
    "relevance_map",
    "roles_kept",
    "rule_agreement",
    "side_by_side",
    "similarity_map",
    "syntactic_map",
]
