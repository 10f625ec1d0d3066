"""Cells that no sheet calculates, and text that is no markup."""

from __future__ import annotations

import pytest

from ops.benchmark import harmless


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", " =1", "\t=1", "\r1", "\n1"])
def test_a_formula_gets_a_quote_in_front(text: str) -> None:
    assert harmless.cell(text) == f"'{text}"


def test_numbers_and_other_texts_stay_what_they_are() -> None:
    assert [harmless.cell(value) for value in (-1.5, None, True, "a=b", "", "=\0")] == [-1.5, "", "yes", "a=b", "", "'="]


def test_text_is_one_line_without_markup() -> None:
    assert harmless.markdown("a|b\n[c](d) <e> `f` ~g") == r"a\|b \[c\](d) \<e\> \`f\` \~g"
