"""Blocks: features computed from signals and pictures, with measured prices."""

from gatewise_signals.blocks.block import Block, FunctionBlock, OnnxBlock
from gatewise_signals.blocks.images import (
    BlockStatistics,
    Edges,
    Frame,
    FrameDifference,
    GreyHistogram,
    Thumbnail,
)
from gatewise_signals.blocks.sound import MelEnergies, MelSpectrogram, Mfcc, Spectrogram
from gatewise_signals.blocks.spectra import BandPowers, Goertzel, SpectralMoments, Spectrum
from gatewise_signals.blocks.time_domain import (
    Autocorrelation,
    Envelope,
    Jerk,
    Magnitude,
    Mean,
    Quantiles,
    Resample,
    Statistics,
    Tilt,
    WaveletEnergies,
    ZeroCrossings,
)
from gatewise_signals.graph import SignalGraph
from gatewise_signals.over_time.events import EventFigures, event_figures
from gatewise_signals.over_time.filters import MajorityFilter, TwoStateFilter
from gatewise_signals.price_table import PriceTable
from gatewise_signals.pricing import measured, priced
from gatewise_signals.signal_input import SignalInput
from gatewise_signals.standard import standard_blocks, standard_image_blocks
from gatewise_signals.steps import (
    Channels,
    Picture,
    Pixels,
    Signal,
    Step,
)
from gatewise_signals.windows import StreamWindow, Windower, cut_windows

__all__ = [
    "Autocorrelation",
    "BandPowers",
    "Block",
    "BlockStatistics",
    "Channels",
    "Edges",
    "Envelope",
    "EventFigures",
    "Frame",
    "FrameDifference",
    "FunctionBlock",
    "Goertzel",
    "GreyHistogram",
    "Jerk",
    "Magnitude",
    "MajorityFilter",
    "Mean",
    "MelEnergies",
    "MelSpectrogram",
    "Mfcc",
    "OnnxBlock",
    "Picture",
    "Pixels",
    "PriceTable",
    "Quantiles",
    "Resample",
    "Signal",
    "SignalGraph",
    "SignalInput",
    "SpectralMoments",
    "Spectrogram",
    "Spectrum",
    "Statistics",
    "Step",
    "StreamWindow",
    "Thumbnail",
    "Tilt",
    "TwoStateFilter",
    "WaveletEnergies",
    "Windower",
    "ZeroCrossings",
    "cut_windows",
    "event_figures",
    "measured",
    "priced",
    "standard_blocks",
    "standard_image_blocks",
]
