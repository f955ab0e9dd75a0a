"""Vision towers: encoders that turn pictures into rows of a decoder's input."""
