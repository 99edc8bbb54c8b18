"""Many simulated clusters under seeded faults, checked: universes, their workload and faults, the history, its checkers, the mutants."""
