"""Vision towers: encoders that convert pictures into rows of a decoder's input."""
