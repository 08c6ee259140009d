"""Print samples of a Linux IIO sensor (accelerometer, current, ...) for ``gatewise edge``.

    python iio_samples.py /sys/bus/iio/devices/iio:device0 in_accel_x in_accel_y in_accel_z \
        --rate-hz 50 | gatewise edge bundle --signal - --settings s.toml

Set ``signal_format = "csv"`` and ``rate_hz = 50.0`` in ``s.toml``. If the bundle was made for the
counts of another sensor, also set ``scale`` and ``offset`` to the driver's ``in_accel_scale`` and
``in_accel_offset``. A line has the time in seconds and the raw counts of the channels. From the
times ``gatewise edge`` recognises a skipped sample as a gap, which no window contains. For more
than a few hundred samples per second use the sensor's buffer, which needs no script, and set
``signal_format = "int16"``:

    iio_readdev -u local: -b 64 adxl345 | gatewise edge bundle --signal - --settings s.toml

An ALSA device gives a stream of the same format:

    arecord -q -t raw -f S16_LE -c 1 -r 16000 | gatewise edge bundle --signal - --settings s.toml
"""

import argparse
import time
from pathlib import Path


def main() -> None:
    """Read and print samples at their times."""
    options = read_options()
    files = [options.device / f"{name}_raw" for name in options.channels]
    start_s = time.monotonic()
    sample_number = 0
    n_printed = 0
    while not options.samples or n_printed < options.samples:
        time.sleep(max(0.0, start_s + sample_number / options.rate_hz - time.monotonic()))
        cells = [file.read_text().strip() for file in files]  # each read makes a measurement
        # After a delay of a whole sample or more, these are the cells of a later sample.
        n_elapsed = int((time.monotonic() - start_s) * options.rate_hz)
        sample_number = max(sample_number, n_elapsed)
        print(f"{sample_number / options.rate_hz:.6f},{','.join(cells)}", flush=True)
        sample_number += 1
        n_printed += 1


def read_options() -> argparse.Namespace:
    """Read the options of the command line."""
    parser = argparse.ArgumentParser(description="Print a line per sample of an IIO sensor.")
    parser.add_argument(
        "device", type=Path, help="folder of the sensor, below /sys/bus/iio/devices"
    )
    parser.add_argument(
        "channels", nargs="+", help="such as in_accel_x, which is read from in_accel_x_raw"
    )
    parser.add_argument("--rate-hz", type=float, required=True, help="samples per second")
    parser.add_argument(
        "--samples", type=int, default=0, help="number of samples; by default unlimited"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
