"""Sources of instances: sensors, tables, streams and windows of a signal."""
