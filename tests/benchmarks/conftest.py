import sys
from pathlib import Path

# the benchmarks are no part of the distribution: they are found beside the tests
sys.path.insert(0, str(Path(__file__).parents[2]))
