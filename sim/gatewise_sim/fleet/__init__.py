"""A fleet in virtual time: devices, links, broker and workers, with energy and costs."""
