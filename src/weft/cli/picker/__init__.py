"""`weft epp`: the flags of the picker."""
