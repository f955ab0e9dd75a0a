"""How a step is computed: the `Runner` protocol and its implementations. Knows no scheduling."""
