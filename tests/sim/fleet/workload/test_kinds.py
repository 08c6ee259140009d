import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_sim.fleet.workload.kinds import Replay, Trace, read_trace
from tests.support.refused import refused_file


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("when\n1", "no column 'time'"),
        ("time,site\n1,2", "unknown column 'site'"),
        ("time\n1\nx", "line 3: time 'x' is not a number of seconds"),
        ("time\n-1", "line 2: time '-1' is not"),
        ("time,row\n1,-1", "line 2: row '-1' is not the number of a row"),
        ("time,row\n1", "line 2: 1 cells under 2 columns"),
        ("", "is empty"),
    ],
)
def test_a_bad_trace_is_refused_by_line(tmp_path, text, complaint):
    refused_file(read_trace, tmp_path / "trace.csv", text, complaint)


def test_a_trace_must_end_before_it_begins_again():
    with pytest.raises(InputError, match="every must be longer than the trace"):
        Replay(Trace([np.array([119.0])]), every=119.0)
