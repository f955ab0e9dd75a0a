"""/v1/conversations: items that responses continue, by the id of their conversation."""
