import numpy as np

from gatewise_sim.fleet.network.link import DeviceDraws


def test_it_is_splitmix64():
    """The first outputs after the state 1234567, as the algorithm's reference code prints them."""
    draws = DeviceDraws(0, 0)
    draws._state = 1234567
    reference = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    assert [draws.random() for _ in reference] == [(z >> 11) * 2.0**-53 for z in reference]


def test_streams_of_devices_and_seeds_have_nothing_to_do_with_each_other():
    table = np.array(
        [
            [
                [draws.random() for _ in range(4)]
                for draws in (DeviceDraws(s, d) for d in range(2000))
            ]
            for s in range(2)
        ]
    )
    flat = table.transpose(0, 2, 1).reshape(8, -1)  # by seed and place in the stream
    assert np.abs(flat.mean(axis=1) - 0.5).max() < 5 * np.sqrt(1 / 12 / 2000)
    apart = np.corrcoef(flat) - np.eye(8)
    assert np.abs(apart).max() < 5 / np.sqrt(2000)
    neighbours = np.corrcoef(flat[0, :-1], flat[0, 1:])[0, 1]
    assert abs(neighbours) < 5 / np.sqrt(2000)
    assert len(np.unique(table)) == table.size
