"""A virtual environment with only the distributions of ``pip install 'gatewise[extra]'``."""

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
    """Find the installed distributions that a requirement needs, by name."""
    extras = PROJECT["project"]["optional-dependencies"]
    distributions: dict[str, Distribution] = {}
    visited_extras: set[tuple[str, str]] = set()
    pending_requirements = [Requirement(requirement)]
    while pending_requirements:
        parsed_requirement = pending_requirements.pop()
        name = canonicalize_name(parsed_requirement.name)
        for extra in {"", *parsed_requirement.extras}:
            if (name, extra) in visited_extras:
                continue
            visited_extras.add((name, extra))
            if name == "gatewise":
                dependency_lines = extras[extra] if extra else PROJECT["project"]["dependencies"]
            else:
                distributions[name] = distribution(name)
                dependency_lines = distributions[name].requires or []
            for line in dependency_lines:
                dependency = Requirement(line)
                if dependency.marker is None or dependency.marker.evaluate({"extra": extra}):
                    pending_requirements.append(dependency)
    return distributions


def link_distributions(environment: Path, requirement: str) -> None:
    """Link the distributions of a requirement and this project's packages into an environment.

    Links replace pip, which would download about 600 MB.
    """
    (site_folder,) = environment.glob("lib/python*/site-packages")
    for installed_distribution in find_required_distributions(requirement).values():
        names = {
            file.parts[0] for file in installed_distribution.files or () if file.parts[0] != ".."
        }
        for name in names - {"__pycache__"}:
            link = site_folder / name
            if not link.exists():
                link.symlink_to(Path(str(installed_distribution.locate_file(name))).resolve())
    for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        (site_folder / Path(folder).name).symlink_to(ROOT / folder)
    metadata = site_folder / f"gatewise-{__version__}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: gatewise\nVersion: {__version__}\n"
    )
    for name, target in PROJECT["project"]["scripts"].items():
        module_name, function_name = target.split(":")
        script = environment / "bin" / name
        script.write_text(
            f"#!{environment}/bin/python\nimport sys\nfrom {module_name} import {function_name}\n"
            f"sys.exit({function_name}())\n"
        )
        script.chmod(0o755)
