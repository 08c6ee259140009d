# The package's public names; loaded on first use.
from .bars import draw_bars as draw_bars
from .bars import legend as legend
from .classes import draw_classes as draw_classes
from .frontier import Mark as Mark
from .frontier import draw_frontier as draw_frontier
from .latency import Curve as Curve
from .latency import draw_latency as draw_latency
from .marks import FILLS as FILLS
from .marks import NAMES as NAMES
from .marks import Fill as Fill
from .marks import pattern_definitions as pattern_definitions
from .picture import Picture as Picture
from .picture import pictured as pictured
from .timeline import draw_timeline as draw_timeline
