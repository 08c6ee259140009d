"""Samples of a Linux IIO sensor (accelerometer, current, ...) as lines for ``gatewise edge``.

    python iio_samples.py /sys/bus/iio/devices/iio:device0 in_accel_x in_accel_y in_accel_z \
        --rate-hz 50 | gatewise edge bundle --signal - --settings s.toml

with ``signal_format = "csv"`` and ``rate_hz = 50.0`` in ``s.toml``, and as ``scale`` and ``offset``
the numbers in the driver's ``in_accel_scale`` and ``in_accel_offset``, where the bundle is for
another sensor's counts. Each line has the time in seconds and the channels' raw counts, so that no
window contains a late sample. Reading files takes some 0.1 ms per channel. For more than a few
hundred samples per second use the sensor's buffer, which needs no script:

    iio_readdev -u local: -b 64 adxl345 | gatewise edge bundle --signal - --settings s.toml

with ``signal_format = "int16"``.

Sound of an ALSA device is such a stream as well:

    arecord -q -t raw -f S16_LE -c 1 -r 16000 | gatewise edge bundle --signal - --settings s.toml
"""

import argparse
import time
from pathlib import Path

parser = argparse.ArgumentParser(description="Samples of an IIO sensor, a line each.")
parser.add_argument("device", type=Path, help="its folder below /sys/bus/iio/devices")
parser.add_argument("channels", nargs="+", help="as in_accel_x, read from in_accel_x_raw")
parser.add_argument("--rate-hz", type=float, required=True, help="samples a second")
parser.add_argument("--samples", type=int, default=0, help="end after so many; 0: never")
given = parser.parse_args()

files = [given.device / f"{name}_raw" for name in given.channels]
start = time.monotonic()
number = taken = 0
while not given.samples or taken < given.samples:
    time.sleep(max(0.0, start + number / given.rate_hz - time.monotonic()))
    cells = [file.read_text().strip() for file in files]  # the driver measures now
    late = time.monotonic() - start - number / given.rate_hz
    if late * given.rate_hz > 1:  # samples were lost: go on with the one that is due now
        number += int(late * given.rate_hz)
    print(f"{number / given.rate_hz:.6f},{','.join(cells)}", flush=True)
    number, taken = number + 1, taken + 1
