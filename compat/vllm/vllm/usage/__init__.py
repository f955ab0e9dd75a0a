"""Statistics of use, which Weft neither gathers nor sends."""
