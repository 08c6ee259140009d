"""A virtual environment that sees what ``pip install 'gatewise[extra]'`` installs, and no more."""

from __future__ import annotations

import tomllib
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gatewise import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def required(requirement: str) -> dict[str, Distribution]:
    """Distributions of the present environment that a requirement draws in, by name."""
    extras = PROJECT["project"]["optional-dependencies"]
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in {"", *wanted.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            if name == "gatewise":
                of_it = extras[extra] if extra else PROJECT["project"]["dependencies"]
            else:
                found[name] = distribution(name)
                of_it = found[name].requires or []
            for line in of_it:
                part = Requirement(line)
                if part.marker is None or part.marker.evaluate({"extra": extra}):
                    waiting.append(part)
    return found


def install(environment: Path, requirement: str) -> None:
    """Link what a requirement draws in, and the packages as they stand, into an environment.

    pip itself is not run: it would fetch some 600 MB. What is linked are the distributions that
    are named as requirements, of the extra and of each other.
    """
    (site,) = environment.glob("lib/python*/site-packages")
    for present in required(requirement).values():
        names = {file.parts[0] for file in present.files or () if file.parts[0] != ".."}
        for name in names - {"__pycache__"}:
            link = site / name
            if not link.exists():
                link.symlink_to(Path(str(present.locate_file(name))).resolve())
    for folder in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        (site / Path(folder).name).symlink_to(ROOT / folder)
    known = site / f"gatewise-{__version__}.dist-info"
    known.mkdir()
    (known / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: gatewise\nVersion: {__version__}\n"
    )
    for name, target in PROJECT["project"]["scripts"].items():
        module, function = target.split(":")
        script = environment / "bin" / name
        script.write_text(
            f"#!{environment}/bin/python\nimport sys\nfrom {module} import {function}\n"
            f"sys.exit({function}())\n"
        )
        script.chmod(0o755)
