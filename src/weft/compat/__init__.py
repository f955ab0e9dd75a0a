"""What the command lines of other engines mean here."""
