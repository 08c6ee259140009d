from .forest import Forest as Forest
from .path import PruningPath as PruningPath
from .problem import PruneProblem as PruneProblem
from .problem import Solution as Solution
from .problem import build_problem as build_problem
from .pruning import SOLVERS as SOLVERS
from .pruning import prune as prune
