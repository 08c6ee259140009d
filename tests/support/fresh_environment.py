"""A virtual environment with only the distributions of ``pip install 'gatewise[extra]'``.

The test of the README runs its commands there, so that a missing requirement of an extra shows.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gatewise import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def find_required_distributions(requirement: str) -> dict[str, Distribution]:
    """Find the installed distributions that a requirement needs, by name.

    The project itself is not among them. Its dependencies are read from pyproject.toml, because the
    metadata of the installed project may be older.
    """
    dependencies_of_extra = {
        "": PROJECT["project"]["dependencies"],
        **PROJECT["project"]["optional-dependencies"],
    }
    distributions: dict[str, Distribution] = {}
    # distributions and extras may require each other in a circle
    visited_names_and_extras: set[tuple[str, str]] = set()
    pending_requirements = [Requirement(requirement)]
    while pending_requirements:
        pending_requirement = pending_requirements.pop()
        name = canonicalize_name(pending_requirement.name)
        for extra in {"", *pending_requirement.extras}:
            if (name, extra) in visited_names_and_extras:
                continue
            visited_names_and_extras.add((name, extra))
            if name == "gatewise":
                dependencies = dependencies_of_extra[extra]
            else:
                distributions[name] = distribution(name)
                dependencies = distributions[name].requires or []
            pending_requirements += [
                dependency
                for dependency in map(Requirement, dependencies)
                if dependency.marker is None or dependency.marker.evaluate({"extra": extra})
            ]
    return distributions


def link_distributions(environment: Path, requirement: str) -> None:
    """Link the distributions of a requirement and this project's packages into an environment.

    Links replace pip, which would download about 600 MB. The environment must have no packages yet.
    """
    (site_folder,) = environment.glob("lib/python*/site-packages")
    for required_distribution in find_required_distributions(requirement).values():
        _link_files(required_distribution, site_folder)
    for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        (site_folder / Path(folder).name).symlink_to(ROOT / folder)
    # importlib.metadata finds the version of a distribution only with its metadata
    metadata_folder = site_folder / f"gatewise-{__version__}.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: gatewise\nVersion: {__version__}\n"
    )
    _write_scripts(environment)


def _link_files(installed_distribution: Distribution, site_folder: Path) -> None:
    """Link the packages, modules and metadata of a distribution, but not its scripts."""
    # the paths of scripts start with ".."
    top_names = {
        file.parts[0] for file in installed_distribution.files or () if file.parts[0] != ".."
    }
    for name in top_names - {"__pycache__"}:
        link = site_folder / name
        if not link.exists():  # distributions may share a folder
            link.symlink_to(Path(str(installed_distribution.locate_file(name))).resolve())


def _write_scripts(environment: Path) -> None:
    """Write this project's commands as pip does, run by the Python of the environment."""
    for name, target in PROJECT["project"]["scripts"].items():
        module_name, function_name = target.split(":")
        script = environment / "bin" / name
        script.write_text(
            f"#!{environment}/bin/python\nimport sys\nfrom {module_name} import {function_name}\n"
            f"sys.exit({function_name}())\n"
        )
        script.chmod(0o755)
