"""From a step's logits, or hidden states, to what is committed."""
