"""How long endpoints take: models that learn from each response, in the process, and in bounded memory."""
