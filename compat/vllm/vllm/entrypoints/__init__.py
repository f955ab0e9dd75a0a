"""Ways into the engine."""
