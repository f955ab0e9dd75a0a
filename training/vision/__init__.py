"""The pictures, tower and training of the model `embedded:tiny-vision`."""
