"""Settings of the demo: the options of ``gatewise demo``, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gatewise_sim.command_options import option_words

MAX_LOSS: Final = 0.005
"""Accuracy that a demo gives up at most by default: data this small is noisy, and a
test of 540 rows knows an accuracy to half a percent only."""


@dataclass(frozen=True, kw_only=True)
class DemoSettings:
    """Options of ``gatewise demo``; the words below each are also its help."""

    dataset: str = "digits"
    """digits, breast_cancer, wine, iris; or a .csv, .parquet or .npz file."""
    target: str | None = None
    """The file's label column."""
    costs: Path | None = None
    """Feature prices, .toml or .csv; 1 each by default."""
    method: str = "staged"
    """staged, adapt-gbrt or adapt-lin."""
    devices: int = field(default=4, metadata={"min": 1, "max": 64})
    """Edge devices, each a process."""
    workers: int = field(default=1, metadata={"min": 1, "max": 16})
    """Cloud workers; several need mosquitto."""
    instances: int | None = None
    """Test instances to route; all held out by default."""
    broker: str | None = None
    """URL of a running broker; else mosquitto, or an embedded one."""
    link: str = "wifi"
    """Between devices and broker: wifi, 4g, 3g, edge, nb-iot, satellite, none."""
    budget: float | None = None
    """Mean cost per instance; at most one of this and the next two."""
    max_loss: float | None = None
    """Accuracy to give up at most; 0.005 by default."""
    offload_rate: float | None = None
    """Share to offload at most."""
    allow_missing: bool = False
    """Take NaN as a value."""
    device_kb: int = field(default=64, metadata={"min": 1})
    """Room for the stages on a device, in KB (method staged)."""
    deadline_ms: float = field(default=2000.0, metadata={"min": 1})
    """For each answer, in ms."""
    seed: int = field(default=0, metadata={"min": 0})
    """Of all randomness."""
    out: Path = Path("demo-out")
    """Folder for the report."""

    def command(self) -> str:
        """Command line that repeats the run, without a password."""
        words = option_words(self, always=("dataset", "method", "seed"))
        return " ".join(["gatewise demo", *words])
