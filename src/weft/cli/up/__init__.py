"""`weft up`: workers, the picker and Envoy on one machine."""
