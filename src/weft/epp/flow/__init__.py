"""Flow control: requests wait here, by priority and fairly among flows, until the pool has capacity."""
