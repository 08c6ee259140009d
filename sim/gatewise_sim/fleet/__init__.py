"""A fleet in virtual time: the runtime's own bookkeeping on a simulated clock and network."""
