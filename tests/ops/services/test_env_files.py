from __future__ import annotations

from pathlib import Path

import pytest

from ops.services import env_files

# Each case: the file, and what systemd 252 gives a unit for it (asked with `env` as the unit's command; test_adoption_systemd.py asks again).
CASES = {
    "plain": ("A=b\n", {"A": "b"}),
    "comments and blank lines": ("# c\n; d\n\n  A=b  \n", {"A": "b"}),
    "last one counts": ("A=1\nA=2\n", {"A": "2"}),
    "blanks inside stay, those around go": ("A =  b  c \t\n", {"A": "b  c"}),
    "single quotes": ("A='b \"c\" \\n $d  '\n", {"A": 'b "c" \\n $d  '}),
    "double quotes": ('A="b \'c\' \\" \\\\ \\$ \\n"\n', {"A": "b 'c' \" \\ $ \\n"}),
    "quoted parts one after another": ("A=\"b\"'c'\n", {"A": "bc"}),
    "a quote inside of a value": ("A=b\"c\"\n", {"A": 'b"c"'}),
    "backslash": ("A=b\\c\\ \n", {"A": "bc "}),
    "continued": ("A=b\\\nc\n", {"A": "bc"}),
    "continued in double quotes": ('A="b\\\nc"\n', {"A": "bc"}),
    "a newline in quotes": ("A='b\nc'\n", {"A": "b\nc"}),
    "no newline at the end": ("A=b", {"A": "b"}),
    "empty": ("A=\nB=''\n", {"A": "", "B": ""}),
    "export is no variable": ("export A=b\nC=d\n", {"C": "d"}),
    "not a name": ("1A=b\nA-B=c\nD\nE=f\n", {"E": "f"}),
    "nothing is expanded": ("A=$HOME ${X} %h\n", {"A": "$HOME ${X} %h"}),
    "hash inside of a value": ("A=b # c\n", {"A": "b # c"}),
    "json": ("A='{\"kv\": [1, 2]}'\n", {"A": '{"kv": [1, 2]}'}),
    "windows line ends": ("A=b\r\nC=d\r\n", {"A": "b", "C": "d"}),
}


@pytest.mark.parametrize("case", CASES)
def test_variables_are_read_as_systemd_reads_them(case: str) -> None:
    text, expected = CASES[case]
    assert env_files.parse(text) == expected


def test_only_a_file_with_a_dash_may_be_missing(tmp_path: Path) -> None:
    assert env_files.read(f"-{tmp_path}/none") == {}
    with pytest.raises(FileNotFoundError):
        env_files.read(f"{tmp_path}/none")
