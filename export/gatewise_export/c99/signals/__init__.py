"""Write signal blocks as C99 that uses fixed memory and computes a step on first use."""
