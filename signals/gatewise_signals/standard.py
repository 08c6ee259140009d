"""Standard lists of blocks, from which training chooses."""

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
from gatewise_signals.steps import (
    Channels,
    Picture,
    Pixels,
    Signal,
    check_number,
    check_whole,
)

AXES = "xyz"
OCTAVES = 5
SOUND_HZ = 2000.0
"""Smallest rate of a signal that is sound or vibration."""
FRAME_SECONDS = 0.032
PARTS = 4
"""Parts of a window of sound with at least four frames each; their order tells words apart."""


def standard_blocks(
    *,
    rate_hz: float,
    channels: Sequence[str],
    scale: float = 1.0,
    unit: str = "",
    groups: Mapping[str, Sequence[str]] | None = None,
    samples: int | None = None,
) -> list[Block]:
    """Make a list of blocks for signals of any rate, the cheap ones first.

    Each signal has the mean, zero crossings, statistics, quantiles, wavelet energies,
    autocorrelation, powers of octave bands up to half the rate, and spectral moments. Signals of
    several axes add statistics and bands of the magnitude and statistics of the jerk. Signals of
    three axes named ``acc...``, ``a`` or ``xyz`` add the tilt. Signals of 2 kHz or more add the
    spectrum of the envelope, mel energies and MFCC.

    Parameters
    ----------
    rate_hz : float
        Samples per second.
    channels : sequence of str
        Names of the channels of a window, in order.
    scale : float, default 1.0
        Unit of one count, for signals in whole numbers.
    unit : str
        Name of the unit; a device compares it with the unit of its sensor.
    groups : mapping of str to sequence of str, optional
        Channels of each signal, by its name. By default ``acc_x``, ``acc_y`` and ``acc_z``, or
        ``accX``, ``accY`` and ``accZ``, are the signal ``acc``, and ``x``, ``y`` and ``z`` are
        ``xyz``; any other channel is a signal of its own.
    samples : int, optional
        Samples of a window. It adapts lags and levels to the window, and leaves out blocks that
        need more samples. Without it windows need 16 samples, or 64 ms of 2 kHz or more.

    Returns
    -------
    list of Block

    Raises
    ------
    InputError
        If there is no channel, a channel occurs twice or in no group, or the rate is not above 0.

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
    length = samples or 16
    ranked: list[tuple[int, Block]] = []
    for signal in _signals(list(channels), groups):
        signal = replace(signal, scale=float(scale), unit=unit, rate_hz=rate)
        ranked += enumerate(_in_order_of_price(signal, rate, length))
        if rate >= SOUND_HZ:
            ranked += enumerate(_of_sound(signal, rate, samples), start=100)
    return [block for _, block in sorted(ranked, key=lambda pair: pair[0])]


def standard_image_blocks(
    shape: Sequence[int], *, name: str = "image", scale: float = 1.0
) -> list[Block]:
    """Make a list of blocks for pictures, the cheap ones first.

    The blocks are a histogram, thumbnails of 4, 7 and 14 cells per side, statistics of cells, and
    edges. With several frames they read the last frame, and two more blocks read its difference
    from the first.

    Parameters
    ----------
    shape : sequence of int
        Shape of a window: (height, width), (height, width, 3) or (frames, height, width).
    name : str
        Name of the picture in the names of features.
    scale : float, default 1.0
        Unit of one count; the histogram covers 0 to 255 counts.

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
    if len(sizes) not in (2, 3) or not all(isinstance(d, int) and d > 1 for d in sizes):
        raise InputError(
            f"shape is {sizes}; give (height, width), (height, width, 3) or (frames, height, width)"
        )
    frames = len(sizes) == 3 and sizes[2] != 3
    height, width = sizes[1:] if frames else sizes[:2]
    largest_side = min(height, width) - 1
    sides = sorted({min(side, largest_side) for side in (4, 7, 14)})
    picture: Picture = Frame(sizes[0] - 1, name, scale) if frames else Pixels(name, scale)
    lowest, highest = sorted((0.0, 256.0 * scale))
    blocks: list[Block] = [GreyHistogram(picture, 16, lowest, highest)]
    blocks += [Thumbnail(picture, side, side) for side in sides]
    if frames:
        change = FrameDifference(Frame(0, name, scale), picture)
        blocks += [
            GreyHistogram(change, 16, lowest, highest),
            Thumbnail(change, sides[0], sides[0]),
        ]
    cells = sides[0]
    return [
        *blocks,
        BlockStatistics(picture, cells, cells),
        Edges(picture, cells, cells),
        Edges(picture, sides[-2:][0], sides[-2:][0], 8),
    ]


def _signals(names: list[str], groups: Mapping[str, Sequence[str]] | None) -> list[Channels]:
    """Group channels into signals."""
    if not names or len(set(names)) < len(names):
        raise InputError(f"channels are {names}: give one name or more, each once")
    stems_and_axes = {name: _stem_and_axis(name, names) for name in names}
    axes = {name: axis for name, (_, axis) in stems_and_axes.items()}
    if groups is None:
        grouped: dict[str, list[str]] = {}
        for name, (stem, _) in stems_and_axes.items():
            grouped.setdefault(stem, []).append(name)
    else:
        grouped = {name: list(members) for name, members in groups.items()}
        grouped_names = [member for members in grouped.values() for member in members]
        if sorted(grouped_names) != sorted(names):
            raise InputError(
                f"groups hold {sorted(grouped_names)}; each of {sorted(names)} belongs to one"
            )
    signals = []
    for stem, members in grouped.items():
        indices = tuple(names.index(member) for member in members)
        words = tuple(axes[member] for member in members)
        if len(members) == 1:
            stem = members[0] if groups is None else stem
            words = ()
        elif len(set(words)) < len(words):
            words = tuple(members)
        signals.append(Channels(stem, indices, words))
    return signals


def _stem_and_axis(name: str, names: Sequence[str]) -> tuple[str, str]:
    """Split a channel's name into signal and axis; without an axis the name is returned twice.

    ``acc_x`` is axis x of ``acc``, and so is ``accx`` if ``accy`` and ``accz`` are also present.
    """
    stem = name[:-1]
    axis = name[-1:].lower()
    if axis not in AXES:
        return name, name
    words = AXES if name[-1] == axis else AXES.upper()
    if stem[:-1] and stem[-1] in "_- ":
        return stem[:-1], axis
    if all(stem + word in names for word in words):
        return stem or AXES, axis
    return name, name


def _in_order_of_price(signal: Channels, rate: float, length: int) -> list[Block]:
    """List the blocks of one signal, the cheap ones first."""
    # rate / 2, rate / 4, ...; lags 1, 2, 4, ... up to half a window; a level halves the samples
    octaves = (0.0, *(rate / 2 / 2**k for k in range(OCTAVES, -1, -1)))
    lags = tuple(2**k for k in range(12) if 2**k <= max(1, length // 2))[:6]
    levels = min(6, length.bit_length() - 1)
    several = len(signal.channels) > 1
    blocks: list[Block] = [Mean(signal)]
    is_acceleration = signal.name.lower().startswith("acc") or signal.name.lower() in ("a", AXES)
    if len(signal.channels) == 3 and is_acceleration:
        blocks.append(Tilt(signal))
    spectrum = Spectrum(signal, rate)
    blocks += [ZeroCrossings(signal), Quantiles(signal), Statistics(signal)]
    if several:
        whole = Magnitude(signal)
        blocks += [Statistics(whole), BandPowers(Spectrum(whole, rate), octaves)]
        blocks.append(Statistics(Jerk(signal, rate)))
    return [
        *blocks,
        WaveletEnergies(signal, levels),
        Autocorrelation(signal, lags),
        BandPowers(spectrum, octaves),
        SpectralMoments(spectrum),
    ]


def _of_sound(signal: Signal, rate: float, samples: int | None) -> list[Block]:
    """List the blocks of sound and vibration."""
    # the largest power of two within 32 ms of samples
    frame = 1 << round(FRAME_SECONDS * rate).bit_length() - 1
    envelope = Envelope(signal, 8)
    # octaves of the envelope, which has an eighth of the rate
    octaves = (0.0, *(rate / 16 / 2**k for k in range(OCTAVES, -1, -1)))
    blocks: list[Block] = []
    if samples is None or samples >= 64:
        blocks.append(BandPowers(Spectrum(envelope, rate / 8), octaves))
    if samples is None or samples >= frame:
        mel = MelSpectrogram(Spectrogram(signal, rate, frame, frame // 2))
        frames = 1 + ((samples or frame) - frame) // (frame // 2)
        blocks += [MelEnergies(mel), Mfcc(mel, parts=PARTS if frames >= 4 * PARTS else 1)]
    return blocks
