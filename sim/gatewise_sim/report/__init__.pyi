# The package's public names; loaded on first use.
from .model import Report as Report
from .output import DEMO as DEMO
from .output import SIMULATION as SIMULATION
from .output import Output as Output
from .page import render as render
from .tables import csv_files as csv_files
