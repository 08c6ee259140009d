"""A release that is learned from old rows and kept instances, and compared with the old one."""
