"""Read the samples of .wav, .flac and .npy files, including the samples of a truncated file."""

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

#: Number of frames to read at a time. A frame is one sample of each channel. The number is small,
#: because the device must still answer all windows that it read before a request to stop.
_MAX_FRAMES: Final = 4096
#: Tags of the formats of a WAV file's samples (mmreg.h). The extensible format contains another
#: tag in its extension.
_PCM: Final = 1
_FLOAT: Final = 3
_EXTENSIBLE: Final = 0xFFFE
#: Names of formats that cannot be read.
_OTHER_FORMATS: Final = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "IMA ADPCM", 85: "MP3"}
#: Size of the longest format chunk in bytes, WAVEFORMATEXTENSIBLE.
_MAX_FORMAT_BYTES: Final = 40
#: Sizes in the headers of recorders that do not know the length yet, or were switched off.
_UNKNOWN_SIZES: Final = (0, 0xFFFFFFFF)
#: First bytes of WAV files. The last two are for files above 4 GiB, which state the size of their
#: samples in a chunk ds64 (EBU Tech 3306, ITU-R BS.2088).
_WAVE_SIGNATURES: Final = (b"RIFF", b"RF64", b"BW64")


@dataclass(frozen=True, eq=False)
class Recording:
    """A file of samples.

    Attributes
    ----------
    kind : {"integer", "float", "array"}
        Integers with the full scale of their width, floats with full scale 1, or values of any
        scale.
    bits : int
        Width of a sample.
    n_channels : int
    rate_hz : float or None
        Samples per second; None if the file does not state it.
    frames : iterator of ndarray, shape (k, n_channels)
        Consecutive samples. Integers are signed.
    flaws : list of str
        Faults of the file that were found so far.
    """

    kind: Literal["integer", "float", "array"]
    bits: int
    n_channels: int
    rate_hz: float | None
    frames: Iterator[NDArray[Any]]
    flaws: list[str] = field(default_factory=list)


def open_recording(path: str) -> Recording | None:
    """Open a .wav, .flac or .npy file; return None if its name has another ending.

    Raises InputError if it cannot be read.
    """
    open_format = {".wav": _open_wave, ".flac": _open_flac, ".npy": _open_array}.get(
        Path(path).suffix.lower()
    )
    if open_format is None:
        return None
    try:
        return open_format(path)
    except OSError as error:
        raise InputError(f"--signal {path}: {error.strerror or error}") from None


# -- WAV -----------------------------------------------------------------------------------


def _open_wave(path: str) -> Recording:
    """Open a WAV file, and read its chunks up to the samples."""
    with Path(path).open("rb") as file:
        file_header = file.read(12)  # "RIFF", the size of the file, "WAVE"
        if not file_header:
            raise InputError(f"--signal {path}: the file is empty")
        if file_header[:4] not in _WAVE_SIGNATURES or file_header[8:] != b"WAVE":
            raise InputError(f"--signal {path}: not a WAV file: it begins with {file_header!r}")
        # Read the chunks up to the samples; their order is free. The header of a chunk has four
        # letters and the size of its content.
        chunks = {b"fmt ": b"", b"ds64": b""}
        while (chunk_header := file.read(8))[:4] != b"data":
            if len(chunk_header) < 8:
                raise InputError(f"--signal {path}: the file is cut before its samples")
            n_chunk_bytes = int.from_bytes(chunk_header[4:], "little")
            n_pad_bytes = n_chunk_bytes % 2  # chunks are padded to an even size
            chunk_name = chunk_header[:4]
            if chunk_name in chunks:
                chunks[chunk_name] = file.read(min(n_chunk_bytes, _MAX_FORMAT_BYTES))
                n_chunk_bytes -= len(chunks[chunk_name])
            file.seek(n_chunk_bytes + n_pad_bytes, os.SEEK_CUR)
        if len(chunks[b"fmt "]) < 16 or len(chunk_header) < 8:
            raise InputError(f"--signal {path}: the file does not state the format of its samples")
        samples_offset = file.tell()
        n_sample_bytes = file.seek(0, os.SEEK_END) - samples_offset
    sample_type, n_channels, rate_hz = _wave_format(path, chunks[b"fmt "])
    frame_bytes = int(sample_type[1]) * n_channels
    # Use the complete samples in the file, even if its header states another size.
    flaws = []
    n_chunk_bytes = int.from_bytes(chunk_header[4:], "little")
    if n_chunk_bytes == 0xFFFFFFFF and len(chunks[b"ds64"]) >= 16:
        n_chunk_bytes = int.from_bytes(chunks[b"ds64"][8:16], "little")
    if n_chunk_bytes in _UNKNOWN_SIZES and n_sample_bytes:
        flaws.append("its header does not state its length; it is read to the end")
    elif n_sample_bytes < n_chunk_bytes:
        flaws.append(
            f"it ends {n_chunk_bytes - n_sample_bytes} bytes before the length in its header"
        )
    else:
        n_sample_bytes = n_chunk_bytes
    n_frames, n_remaining_bytes = divmod(n_sample_bytes, frame_bytes)
    if n_remaining_bytes:
        flaws.append(f"its last {n_remaining_bytes} bytes are an incomplete sample")
    return Recording(
        "integer" if sample_type[0] == "i" else "float",
        8 * int(sample_type[1]),
        n_channels,
        float(rate_hz),
        _wave_frames(path, samples_offset, n_frames, n_channels, sample_type),
        flaws,
    )


def _wave_format(path: str, format_chunk: bytes) -> tuple[str, int, int]:
    """Decode a format chunk to the type of samples (i1 to i4, f4 or f8), channels and rate."""
    # WAVEFORMAT (mmreg.h): tag, channels, frames per second, bytes per second, bytes per frame, and
    # bits per sample.
    format_tag, n_channels, rate_hz, _, frame_bytes, _ = struct.unpack("<HHIIHH", format_chunk[:16])
    if format_tag == _EXTENSIBLE and len(format_chunk) >= 26:  # its sub-format begins at byte 24
        (format_tag,) = struct.unpack("<H", format_chunk[24:26])
    if format_tag not in (_PCM, _FLOAT):
        format_name = _OTHER_FORMATS.get(format_tag, f"format {format_tag}")
        raise InputError(
            f"--signal {path}: the samples are {format_name}; convert the file to PCM (sox, ffmpeg)"
        )
    if n_channels == 0 or rate_hz == 0:
        raise InputError(
            f"--signal {path}: its header states {n_channels} channels and {rate_hz} samples per "
            "second; repair the file (sox)"
        )
    sample_bytes = frame_bytes // n_channels
    readable_sample_bytes = (1, 2, 3, 4) if format_tag == _PCM else (4, 8)
    if sample_bytes not in readable_sample_bytes or frame_bytes != sample_bytes * n_channels:
        raise InputError(
            f"--signal {path}: {'PCM' if format_tag == _PCM else 'float'} samples of "
            f"{8 * sample_bytes} bits; "
            f"{', '.join(str(8 * n_bytes) for n_bytes in readable_sample_bytes)} can be read"
        )
    return f"{'i' if format_tag == _PCM else 'f'}{sample_bytes}", n_channels, rate_hz


def _wave_frames(
    path: str, samples_offset: int, n_frames: int, n_channels: int, sample_type: str
) -> Iterator[NDArray[Any]]:
    """Read the samples of a WAV file from byte `samples_offset` on."""
    frame_bytes = int(sample_type[1]) * n_channels
    with Path(path).open("rb") as file:
        file.seek(samples_offset)
        for n_frames_read in range(0, n_frames, _MAX_FRAMES):
            content = file.read(min(n_frames - n_frames_read, _MAX_FRAMES) * frame_bytes)
            if sample_type == "i1":  # WAV stores 8 bits as unsigned integers with 128 in the middle
                samples: NDArray[Any] = (np.frombuffer(content, "u1") ^ 0x80).view("i1")
            elif sample_type == "i3":
                # Put the three bytes above a zero byte; the shift then extends the sign.
                padded_bytes = np.zeros((len(content) // 3, 4), np.uint8)
                padded_bytes[:, 1:] = np.frombuffer(content, "u1").reshape(-1, 3)
                samples = padded_bytes.view("<i4").ravel() >> 8
            else:
                samples = np.frombuffer(content, f"<{sample_type}")
            yield samples.reshape(-1, n_channels)


# -- FLAC, NPY -----------------------------------------------------------------------------


def _open_flac(path: str) -> Recording:
    """Open a FLAC file with the library soundfile."""
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise not_installed(error, "audio") from None
    try:
        file_info = soundfile.info(path)
    except soundfile.LibsndfileError as error:
        raise InputError(f"--signal {path}: {error.error_string}") from None
    # the library recognises a format by the content of the file
    if file_info.format != "FLAC" or file_info.subtype not in ("PCM_S8", "PCM_16", "PCM_24"):
        raise InputError(
            f"--signal {path}: not a FLAC file: it holds {file_info.format} {file_info.subtype}"
        )
    flaws: list[str] = []
    bits = int(file_info.subtype.removeprefix("PCM_").removeprefix("S"))

    def read_frames() -> Iterator[NDArray[Any]]:
        n_frames = 0
        try:
            # soundfile scales samples to 32 bits
            for samples in soundfile.blocks(path, _MAX_FRAMES, dtype="int32", always_2d=True):
                n_frames += len(samples)
                yield samples >> (32 - bits)
        except soundfile.LibsndfileError as error:
            flaws.append(f"it cannot be read further: {error.error_string}")
        if n_frames < file_info.frames:
            flaws.append(f"it ends {file_info.frames - n_frames} samples before its length")

    return Recording(
        "integer", bits, file_info.channels, float(file_info.samplerate), read_frames(), flaws
    )


def _open_array(path: str) -> Recording:
    """Open an .npy file; numpy reads its header."""
    with Path(path).open("rb") as file:
        try:
            format_version = np.lib.format.read_magic(file)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[format_version]
            shape, is_by_columns, dtype = read_header(file)
        except (ValueError, KeyError, EOFError) as error:
            raise InputError(f"--signal {path}: the file is not an .npy file: {error}") from None
        samples_offset = file.tell()
        n_sample_bytes = file.seek(0, os.SEEK_END) - samples_offset
    if dtype.kind not in "fiub" or not 1 <= len(shape) <= 2 or 0 in shape[1:]:
        raise InputError(
            f"--signal {path} has {dtype} of shape {shape}; a recording must be an array of "
            "numbers, shape (samples,) or (samples, channels)"
        )
    # Use the complete samples in the file.
    n_channels = shape[1] if len(shape) == 2 else 1
    frame_bytes = dtype.itemsize * n_channels
    flaws = []
    n_frames = shape[0]
    if n_sample_bytes < n_frames * frame_bytes:
        # A truncated array that is stored by columns has no complete sample.
        n_frames = 0 if is_by_columns else n_sample_bytes // frame_bytes
        flaws.append(f"it ends {shape[0] - n_frames} samples before its length")
    samples = (
        np.memmap(
            path, dtype, "r", samples_offset, (n_frames, n_channels), "F" if is_by_columns else "C"
        )
        if n_frames
        else np.empty((0, n_channels), dtype)
    )
    frame_batches = (
        np.array(samples[start : start + _MAX_FRAMES]) for start in range(0, n_frames, _MAX_FRAMES)
    )
    return Recording("array", 8 * dtype.itemsize, n_channels, None, frame_batches, flaws)
