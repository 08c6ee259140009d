"""Completion of the root command in a real shell."""

from __future__ import annotations

import pytest

from tests.support.pages import Shell

# The shell runs each line in a process of its own, so this is one line.
COMPLETION_SCRIPT = r"""
_GATEWISE_COMPLETE=source_bash gatewise > completion.sh; source completion.sh; \
for words in "gatewise repo pub" "gatewise train --max"; do \
COMP_WORDS=($words); COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 )); \
_gatewise_completion gatewise; echo ${COMPREPLY[*]}; done
"""


@pytest.mark.slow
def test_bash_completes_commands_and_options(tmp_path):
    with Shell(tmp_path) as shell:
        completions = shell.run(COMPLETION_SCRIPT).splitlines()
    assert completions == ["publish", "--max-loss --max-bytes"]
