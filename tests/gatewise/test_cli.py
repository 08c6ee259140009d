"""Completion of the root command in a real shell."""

from __future__ import annotations

import pytest

from tests.support.pages import Shell

COMPLETION_SCRIPT = """
_GATEWISE_COMPLETE=source_bash gatewise > completion.sh
source completion.sh; COMP_WORDS=({}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); \
_gatewise_completion gatewise; echo ${{COMPREPLY[*]}}
"""


@pytest.mark.parametrize(
    ("typed_words", "expected_words"),
    [
        ("gatewise tr", "train"),
        ("gatewise repo pub", "publish"),
        ("gatewise train --max", "--max-loss --max-bytes --max-instance-cost"),
    ],
)
def test_bash_completes_commands_and_options(typed_words, expected_words, tmp_path):
    with Shell(tmp_path) as shell:
        assert shell.run(COMPLETION_SCRIPT.format(typed_words)).strip() == expected_words
