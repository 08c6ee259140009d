import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gatewise_sim.fleet.workload.sources import uniforms


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 9)
)
def test_the_streams_are_numpys_philox(root, device, block, purpose):
    ours = uniforms(root, device, np.array([block, block + 1]), purpose=purpose, sub=5)
    # numpy counts up before it computes.
    counter = (block | purpose << 64 | 5 << 128) - 1
    theirs = np.random.Philox(key=root | device << 64, counter=counter % 2**256)
    assert ours.ravel().tolist() == np.random.Generator(theirs).random(8).tolist()
