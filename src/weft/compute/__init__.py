"""How a step is computed: one protocol, several implementations, one oracle (`reference`)."""
