"""Layers that keep states in a config: Mamba-2, gated delta nets, and the blocks of Nemotron-H."""
