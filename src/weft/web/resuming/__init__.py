"""Streams that continue at another equal server, with the header `x-weft-resume`."""
