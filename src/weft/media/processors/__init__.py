"""Processors of pictures: convert a decoded picture to tiles of pixels, and to the tokens that it takes in a prompt."""
