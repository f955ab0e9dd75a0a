"""Flow-control policies: fairness, ordering, usage limits and eviction."""
