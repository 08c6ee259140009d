"""Samples of .wav, .flac and .npy files; of a truncated file, its whole samples."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError, not_installed

#: Samples of all channels that are read at a time.
_FRAMES: Final = 4096
#: Formats of a WAV file's samples (mmreg.h); the extensible one has another in its first bytes.
_PCM: Final = 1
_FLOAT: Final = 3
_EXTENSIBLE: Final = 0xFFFE
_OTHER_FORMATS: Final = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "IMA ADPCM", 85: "MP3"}
_MAX_FORMAT: Final = 40
#: Sizes written by recorders that do not know the length yet, or were switched off.
_UNKNOWN_SIZES: Final = (0, 0xFFFFFFFF)


@dataclass(frozen=True, eq=False)
class Recording:
    """A file of samples.

    Attributes
    ----------
    kind : {"whole", "float", "array"}
        Whole numbers at full scale, floats in which full scale is 1, or values of any scale.
    bits : int
        Width of a sample.
    n_channels : int
    rate_hz : float or None
        Samples per second; None where the file does not say.
    frames : iterator of ndarray, shape (k, n_channels)
        Samples that follow each other. Whole numbers are signed.
    flaws : list of str
        Faults of the file, as far as it has been read.
    """

    kind: Literal["whole", "float", "array"]
    bits: int
    n_channels: int
    rate_hz: float | None
    frames: Iterator[NDArray[Any]]
    flaws: list[str] = field(default_factory=list)


def open_recording(path: str) -> Recording | None:
    """Open a .wav, .flac or .npy file; None if its name has another ending.

    Raises InputError, which says what to do, if it cannot be read.
    """
    reader = {".wav": _open_wave, ".flac": _open_flac, ".npy": _open_array}.get(
        Path(path).suffix.lower()
    )
    if reader is None:
        return None
    try:
        return reader(path)
    except OSError as error:
        raise InputError(f"--signal {path}: {error.strerror or error}") from None


# -- WAV -----------------------------------------------------------------------------------


def _open_wave(path: str) -> Recording:
    """Open a RIFF file; its chunks up to the samples are read."""
    with Path(path).open("rb") as file:
        head = file.read(12)
        if not head:
            raise InputError(f"--signal {path}: the file is empty")
        if head[:4] not in (b"RIFF", b"RF64") or head[8:] != b"WAVE":
            raise InputError(f"--signal {path}: not a WAV file: it begins with {head!r}")
        # chunks in any order; the samples come last
        form = b""
        while (chunk := file.read(8))[:4] != b"data":
            if len(chunk) < 8:
                raise InputError(f"--signal {path}: the file is cut before its samples")
            size = int.from_bytes(chunk[4:], "little")
            if chunk[:4] == b"fmt ":
                form = file.read(min(size, _MAX_FORMAT))
                size -= len(form)
            # chunks begin at even places
            file.seek(size + size % 2, os.SEEK_CUR)
        if len(form) < 16 or len(chunk) < 8:
            raise InputError(f"--signal {path}: the file does not say what its samples are")
        begin = file.tell()
        n_bytes = file.seek(0, os.SEEK_END) - begin
    kind, n_channels, rate = _wave_format(path, form)
    frame_bytes = int(kind[1]) * n_channels
    # the whole samples in the file, whatever its header says
    flaws = []
    size = int.from_bytes(chunk[4:], "little")
    if size in _UNKNOWN_SIZES and n_bytes:
        flaws.append("its header does not say how long it is; it is read to the end")
    elif n_bytes < size:
        flaws.append(f"it ends {size - n_bytes} bytes before the length in its header")
    else:
        n_bytes = size
    n_frames, n_torn = divmod(n_bytes, frame_bytes)
    if n_torn:
        flaws.append(f"its last {n_torn} bytes are a part of a sample")
    return Recording(
        "whole" if kind[0] == "i" else "float",
        8 * int(kind[1]),
        n_channels,
        float(rate),
        _wave_frames(path, begin, n_frames, n_channels, kind),
        flaws,
    )


def _wave_format(path: str, form: bytes) -> tuple[str, int, int]:
    """Type of samples, i1 to i4, f4 or f8, number of channels and rate."""
    tag, n_channels, rate, _, frame_bytes, _ = struct.unpack("<HHIIHH", form[:16])
    if tag == _EXTENSIBLE and len(form) >= 26:
        (tag,) = struct.unpack("<H", form[24:26])
    if tag not in (_PCM, _FLOAT):
        name = _OTHER_FORMATS.get(tag, f"format {tag}")
        raise InputError(
            f"--signal {path}: the samples are {name}; convert the file to PCM (sox, ffmpeg)"
        )
    width = frame_bytes // n_channels if n_channels else 0
    widths = (1, 2, 3, 4) if tag == _PCM else (4, 8)
    if width not in widths or frame_bytes != width * n_channels:
        raise InputError(
            f"--signal {path}: {'PCM' if tag == _PCM else 'float'} samples of {8 * width} bits; "
            f"{', '.join(str(8 * w) for w in widths)} can be read"
        )
    return f"{'i' if tag == _PCM else 'f'}{width}", n_channels, rate


def _wave_frames(
    path: str, begin: int, n_frames: int, n_channels: int, kind: str
) -> Iterator[NDArray[Any]]:
    """Samples of a WAV file from byte `begin` on."""
    frame_bytes = int(kind[1]) * n_channels
    with Path(path).open("rb") as file:
        file.seek(begin)
        for n_read in range(0, n_frames, _FRAMES):
            content = file.read(min(n_frames - n_read, _FRAMES) * frame_bytes)
            if kind == "i1":  # WAV has 8 bits without a sign, 128 in the middle
                values: NDArray[Any] = (np.frombuffer(content, "u1") ^ 0x80).view("i1")
            elif kind == "i3":
                padded = np.zeros((len(content) // 3, 4), np.uint8)
                padded[:, 1:] = np.frombuffer(content, "u1").reshape(-1, 3)
                values = padded.view("<i4").ravel() >> 8
            else:
                values = np.frombuffer(content, f"<{kind}")
            yield values.reshape(-1, n_channels)


# -- FLAC, NPY -----------------------------------------------------------------------------


def _open_flac(path: str) -> Recording:
    """Open a FLAC file by the library soundfile."""
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise not_installed(error, "audio") from None
    try:
        info = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise InputError(f"--signal {path}: {error.error_string}") from None
    flaws: list[str] = []
    bits = int(info.subtype.removeprefix("PCM_").removeprefix("S"))

    def frames() -> Iterator[NDArray[Any]]:
        n_frames = 0
        try:
            # blocks come at the full scale of 32 bits
            for values in soundfile.blocks(path, _FRAMES, dtype="int32", always_2d=True):
                n_frames += len(values)
                yield values >> (32 - bits)
        except soundfile.LibsndfileError as error:
            flaws.append(f"it cannot be read on: {error.error_string}")
        if n_frames < info.frames:
            flaws.append(f"it ends {info.frames - n_frames} samples before its length")

    return Recording("whole", bits, info.channels, float(info.samplerate), frames(), flaws)


def _open_array(path: str) -> Recording:
    """Open an .npy file; numpy reads its header."""
    with Path(path).open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            reader = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, by_columns, dtype = reader(file)
        except (ValueError, KeyError, EOFError) as error:
            raise InputError(f"--signal {path}: the file is not an .npy file: {error}") from None
        begin = file.tell()
        left = file.seek(0, 2) - begin
    if dtype.kind not in "fiub" or not 1 <= len(shape) <= 2 or 0 in shape[1:]:
        raise InputError(
            f"--signal {path} holds {dtype} of shape {shape}; a recording is an array of numbers, "
            "shape (samples,) or (samples, channels)"
        )
    # the whole samples in the file
    n_channels = shape[1] if len(shape) == 2 else 1
    frame_bytes = dtype.itemsize * n_channels
    flaws = []
    n_frames = shape[0]
    if left < n_frames * frame_bytes:
        # an array stored by columns has no whole sample
        n_frames = 0 if by_columns else left // frame_bytes
        flaws.append(f"it ends {shape[0] - n_frames} samples before its length")
    values = (
        np.memmap(path, dtype, "r", begin, (n_frames, n_channels), "F" if by_columns else "C")
        if n_frames
        else np.empty((0, n_channels), dtype)
    )
    frames = (np.array(values[i : i + _FRAMES]) for i in range(0, n_frames, _FRAMES))
    return Recording("array", 8 * dtype.itemsize, n_channels, None, frames, flaws)
