"""Flow control: requests wait here, by priority and fairly, until the pool has room."""
