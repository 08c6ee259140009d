"""A fleet in virtual time: devices, their links, broker and workers, and what all of it costs."""
