"""Values that cross layers: requests, outputs, parameters, media, and the tables made of them. No I/O."""
