"""Processors of pictures: from a decoded picture to tiles of pixels and the tokens that it takes in a prompt."""
