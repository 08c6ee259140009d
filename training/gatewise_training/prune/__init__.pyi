from .forest import Forest as Forest
from .path import SOLVERS as SOLVERS
from .path import PruningPath as PruningPath
from .path import prune as prune
from .problem import PruneProblem as PruneProblem
from .problem import Solution as Solution
from .problem import build_problem as build_problem
