"""Values that cross layers: requests, outputs, parameters, media, and tables of them. No I/O."""
