"""Everything that is trained: training sets, runs, sweeps, the loop, objectives, gates and masks."""
