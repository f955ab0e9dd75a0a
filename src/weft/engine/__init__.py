"""The engine: who runs when, on which blocks, and what comes out."""
