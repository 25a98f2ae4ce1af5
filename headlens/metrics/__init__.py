"""Observers: what is measured of every head. A metric is one file with one frozen dataclass, see `Metric`."""
