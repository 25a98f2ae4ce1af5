"""Observers: what is measured of every head.

A new metric is a file with one frozen dataclass, and its line in `TOKEN_METRICS`.
"""

from headlens.metrics.confidence import Confidence
from headlens.metrics.entropy import Entropy
from headlens.metrics.mass import Mass
from headlens.metrics.metric import Metric
from headlens.metrics.monotonicity import Monotonicity
from headlens.metrics.positions import Positions

TOKEN_METRICS: tuple[Metric, ...] = (Confidence(), Positions(), Entropy(), Mass(), Monotonicity())
