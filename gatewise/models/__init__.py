"""Models of stages as flat arrays or graphs, and instances as their inputs."""
