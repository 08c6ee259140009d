"""Standard lists of blocks, from which training selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gatewise.errors import InputError
from gatewise_signals.blocks.block import Block
from gatewise_signals.blocks.images import (
    BlockStatistics,
    Edges,
    Frame,
    FrameDifference,
    GreyHistogram,
    Thumbnail,
)
from gatewise_signals.blocks.sound import MelEnergies, MelSpectrogram, Mfcc, Spectrogram
from gatewise_signals.blocks.spectra import BandPowers, SpectralMoments, Spectrum
from gatewise_signals.blocks.time_domain import (
    Autocorrelation,
    Envelope,
    Jerk,
    Magnitude,
    Mean,
    Quantiles,
    Statistics,
    Tilt,
    WaveletEnergies,
    ZeroCrossings,
)
from gatewise_signals.steps import Channels, Picture, Pixels, Signal, check_number, check_whole

#: Names of the axes of a signal.
AXES = "xyz"
#: Number of octave bands below half the rate; the band below them begins at 0 Hz.
OCTAVES = 5
#: Smallest rate of a signal that is treated as sound or vibration.
SOUND_HZ = 2000.0
#: Largest length of a frame of sound, over which speech hardly changes.
FRAME_SECONDS = 0.032
#: Number of parts of a long window of sound, whose order distinguishes words.
PARTS = 4


def standard_blocks(
    *,
    rate_hz: float,
    channels: Sequence[str],
    scale: float = 1.0,
    unit: str = "",
    groups: Mapping[str, Sequence[str]] | None = None,
    samples: int | None = None,
) -> list[Block]:
    """Make a list of blocks for signals of any rate, beginning with the cheap ones.

    The blocks of each signal are the mean, zero crossings, statistics, quantiles, wavelet energies,
    autocorrelation, powers of octave bands up to half the rate, and spectral moments. A signal with
    several axes also has statistics and bands of the magnitude, and statistics of the jerk. A
    signal with three axes and the name ``acc...``, ``a`` or ``xyz`` also has the tilt. A signal of
    2 kHz or more also has the spectrum of the envelope, mel energies and MFCC.

    Parameters
    ----------
    rate_hz : float
        Samples per second.
    channels : sequence of str
        Names of the channels of a window, in order.
    scale : float, default 1.0
        Value of one count in the unit, for signals in whole numbers.
    unit : str
        Name of the unit; a device compares it with the unit of its sensor.
    groups : mapping of str to sequence of str, optional
        Channels of each signal, by its name. By default ``acc_x``, ``acc_y`` and ``acc_z``, or
        ``accX``, ``accY`` and ``accZ``, form the signal ``acc``, and ``x``, ``y`` and ``z`` form
        the signal ``xyz``. Each other channel is a separate signal.
    samples : int, optional
        Number of samples in a window. Lags and levels are adapted to it, and blocks that need more
        samples are left out. Without it, windows need 16 samples, or 32 ms at 2 kHz or more.

    Returns
    -------
    list of Block

    Raises
    ------
    InputError
        If `channels` is empty, a channel occurs twice or in no group, or the rate is not above 0.

    Examples
    --------
    >>> blocks = standard_blocks(rate_hz=50, channels=["acc_x", "acc_y", "acc_z", "light"])
    >>> blocks[0].names
    ('mean(acc).x.mean', 'mean(acc).y.mean', 'mean(acc).z.mean')
    >>> blocks[1].label
    'mean(light)'
    """
    check_number("rate_hz", rate_hz, 0, 1e9)
    if samples is not None:
        check_whole("samples", samples, 2, 1 << 24)
    rate = float(rate_hz)
    n_samples = samples or 16
    ranked_blocks: list[tuple[int, Block]] = []
    for signal in _group_channels(list(channels), groups):
        signal = replace(signal, scale=float(scale), unit=unit, rate_hz=rate)
        ranked_blocks += enumerate(_list_signal_blocks(signal, rate, n_samples))
        if rate >= SOUND_HZ:
            # after the other blocks of all signals, which are cheaper
            ranked_blocks += enumerate(_list_sound_blocks(signal, rate, samples), start=100)
    return [
        block for _, block in sorted(ranked_blocks, key=lambda rank_and_block: rank_and_block[0])
    ]


def standard_image_blocks(
    shape: Sequence[int], *, name: str = "image", scale: float = 1.0
) -> list[Block]:
    """Make a list of blocks for images, beginning with the cheap ones.

    The blocks are a histogram, thumbnails with 4, 7 and 14 cells per side, statistics of cells, and
    edges. If a window has several frames, these blocks read the last frame, and two more blocks
    read its difference from the first frame.

    Parameters
    ----------
    shape : sequence of int
        Shape of a window: (height, width), (height, width, 3) or (frames, height, width).
    name : str
        Name of the image in the names of features.
    scale : float, default 1.0
        Value of one count; the histogram covers 0 to 255 counts.

    Returns
    -------
    list of Block

    Raises
    ------
    InputError
        If the shape is not one of these.

    Examples
    --------
    >>> [block.label for block in standard_image_blocks((28, 28))][:2]
    ['histogram(image)', 'thumbnail(image, 4, 4)']
    """
    sizes = tuple(shape)
    if len(sizes) not in (2, 3) or not all(isinstance(size, int) and size > 1 for size in sizes):
        raise InputError(
            f"shape is {sizes}; give (height, width), (height, width, 3) or (frames, height, width)"
        )
    has_frames = len(sizes) == 3 and sizes[2] != 3
    height, width = sizes[1:] if has_frames else sizes[:2]
    max_cells = min(height, width) - 1
    sides = sorted({min(side, max_cells) for side in (4, 7, 14)})
    picture: Picture = Frame(sizes[0] - 1, name, scale) if has_frames else Pixels(name, scale)
    lowest, highest = sorted((0.0, 256.0 * scale))
    blocks: list[Block] = [GreyHistogram(picture, 16, lowest, highest)]
    blocks += [Thumbnail(picture, side, side) for side in sides]
    if has_frames:
        difference = FrameDifference(Frame(0, name, scale), picture)
        blocks += [
            GreyHistogram(difference, 16, lowest, highest),
            Thumbnail(difference, sides[0], sides[0]),
        ]
    cells_per_side = sides[0]
    fine_cells_per_side = sides[-2:][0]  # the second largest, or the only one
    return [
        *blocks,
        BlockStatistics(picture, cells_per_side, cells_per_side),
        Edges(picture, cells_per_side, cells_per_side),
        Edges(picture, fine_cells_per_side, fine_cells_per_side, 8),
    ]


def _group_channels(names: list[str], groups: Mapping[str, Sequence[str]] | None) -> list[Channels]:
    """Make a signal of each group of channels, or of the channels with a common stem."""
    if not names or len(set(names)) < len(names):
        raise InputError(f"channels are {names}: give at least one name, and each name once")
    # find the channels of each signal
    stems_and_axes = {name: _split_name(name, names) for name in names}
    axis_of_channel = {name: axis for name, (_, axis) in stems_and_axes.items()}
    if groups is None:
        stems_of_axes = {stem for name, (stem, axis) in stems_and_axes.items() if axis != name}
        members_by_signal: dict[str, list[str]] = {}
        for name, (stem, axis) in stems_and_axes.items():
            # a channel without an axis is a signal of its own, even beside axes of its name
            is_alone = axis == name and name in stems_of_axes
            members_by_signal.setdefault(f"{name}_alone" if is_alone else stem, []).append(name)
    else:
        members_by_signal = {name: list(channel_names) for name, channel_names in groups.items()}
        grouped_names = [
            channel for channel_names in members_by_signal.values() for channel in channel_names
        ]
        if sorted(grouped_names) != sorted(names):
            raise InputError(
                f"groups hold {sorted(grouped_names)}, but each of {sorted(names)} must belong to "
                "exactly one group"
            )
    # name the axes of each signal
    signals = []
    for stem, channel_names in members_by_signal.items():
        indices = tuple(names.index(channel) for channel in channel_names)
        axis_names = tuple(axis_of_channel[channel] for channel in channel_names)
        if len(channel_names) == 1:
            if groups is None and channel_names[0] not in members_by_signal:
                stem = channel_names[0]  # a lone axis
            axis_names = ()
        elif len(set(axis_names)) < len(axis_names):
            axis_names = tuple(channel_names)
        signals.append(Channels(stem, indices, axis_names))
    return signals


def _split_name(name: str, names: Sequence[str]) -> tuple[str, str]:
    """Split a channel's name into signal and axis; without an axis, return the name twice.

    ``acc_x`` is axis x of ``acc``, and so is ``accx`` if ``accy`` and ``accz`` also exist.
    """
    stem = name[:-1]
    axis = name[-1:].lower()
    if axis not in AXES:
        return name, name
    letters = AXES if name[-1] == axis else AXES.upper()
    if stem[:-1] and stem[-1] in "_- ":
        return stem[:-1], axis
    if all(stem + letter in names for letter in letters):
        return stem or AXES, axis
    return name, name


def _list_signal_blocks(signal: Channels, rate: float, n_samples: int) -> list[Block]:
    """List the blocks of one signal, beginning with the cheap ones."""
    # edges of the octaves: 0, ..., rate / 4, rate / 2
    octave_edges = (0.0, *(rate / 2 / 2**n_halvings for n_halvings in range(OCTAVES, -1, -1)))
    # lags 1, 2, 4, ... up to half a window
    lags = tuple(2**exponent for exponent in range(12) if 2**exponent <= max(1, n_samples // 2))[:6]
    # each level of the wavelet transform halves the samples
    levels = min(6, n_samples.bit_length() - 1)
    blocks: list[Block] = [Mean(signal)]
    is_acceleration = signal.name.lower().startswith("acc") or signal.name.lower() in ("a", AXES)
    if len(signal.channels) == 3 and is_acceleration:
        blocks.append(Tilt(signal))
    spectrum = Spectrum(signal, rate)
    blocks += [ZeroCrossings(signal), Quantiles(signal), Statistics(signal)]
    if len(signal.channels) > 1:
        magnitude = Magnitude(signal)
        blocks += [Statistics(magnitude), BandPowers(Spectrum(magnitude, rate), octave_edges)]
        blocks.append(Statistics(Jerk(signal, rate)))
    return [
        *blocks,
        WaveletEnergies(signal, levels),
        Autocorrelation(signal, lags),
        BandPowers(spectrum, octave_edges),
        SpectralMoments(spectrum),
    ]


def _list_sound_blocks(signal: Signal, rate: float, n_samples: int | None) -> list[Block]:
    """List the additional blocks of sound and vibration."""
    # the largest power of two that is at most 32 ms of samples
    frame_samples = 1 << (round(FRAME_SECONDS * rate).bit_length() - 1)
    envelope = Envelope(signal, 8)
    # edges of the octaves of the envelope, which has an eighth of the rate
    octave_edges = (0.0, *(rate / 16 / 2**n_halvings for n_halvings in range(OCTAVES, -1, -1)))
    blocks: list[Block] = []
    if n_samples is None or n_samples >= 64:
        blocks.append(BandPowers(Spectrum(envelope, rate / 8), octave_edges))
    if n_samples is None or n_samples >= frame_samples:
        mel = MelSpectrogram(Spectrogram(signal, rate, frame_samples, frame_samples // 2))
        n_frames = 1 + ((n_samples or frame_samples) - frame_samples) // (frame_samples // 2)
        # use parts only if each of them has at least four frames
        blocks += [MelEnergies(mel), Mfcc(mel, parts=PARTS if n_frames >= 4 * PARTS else 1)]
    return blocks
