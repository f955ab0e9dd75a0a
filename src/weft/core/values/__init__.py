"""Values that several layers use: requests, outputs, parameters, media, and tables of them. No I/O."""
