"""A difference as rows: line numbers, colours, marks; whatever text a file holds."""

from __future__ import annotations

from typing import Any

import pytest
from pygments.token import Text

from dashboard import diffs

DIFF = '''--- a/x.py
+++ b/x.py
@@ -10,4 +10,5 @@ def forward(self):
     """Of several
     lines."""
-    return 1
+    print("<b>")
+    return 2
     # end
'''


def test_rows_have_the_line_numbers_of_both_sides() -> None:
    made = diffs.rows(DIFF, "x.py")
    assert [(row["kind"], row["old"], row["new"]) for row in made["rows"]] == [
        ("at", None, None), ("same", 10, 10), ("same", 11, 11), ("del", 12, None), ("add", None, 12), ("add", None, 13), ("same", 13, 14)]
    assert (made["added"], made["removed"], made["more"], made["marked"]) == (2, 1, 0, 0)


def test_code_is_coloured_by_classes_and_escaped() -> None:
    html = [str(row["html"]) for row in diffs.rows(DIFF, "x.py")["rows"]]
    assert html[0] == "line 10, in def forward(self):"
    assert '<span class="t-k">return</span>' in html[3]
    assert "&lt;b&gt;" in html[4]
    assert '<span class="t-c"># end</span>' in html[6]
    assert "style" not in "".join(html)


def test_a_string_over_several_lines_keeps_its_colour() -> None:
    html = [str(row["html"]) for row in diffs.rows(DIFF, "x.py")["rows"]]
    assert html[1].lstrip().startswith('<span class="t-')
    assert '<span class="t-' in html[2]


@pytest.mark.parametrize("path", ["x.unknown", "README", "", "a/b/c", "x.so"])
def test_text_of_no_known_language_stays_plain(path: str) -> None:
    made = diffs.rows(DIFF, path)
    assert str(made["rows"][3]["html"]) == "    return 1"


def test_debris_is_marked_by_its_line_and_text() -> None:
    twice = DIFF.replace("+    return 2\n", '+    print("<b>")\n')
    made = diffs.rows(twice, "x.py", [{"line": 13, "text": 'print("<b>")', "what": "`print` prints during a forward pass"}, "odd", {"text": None}])
    assert [row["what"] for row in made["rows"]] == ["", "", "", "", "", "`print` prints during a forward pass", ""]
    assert made["marked"] == 1


@pytest.mark.parametrize("odd", ["", None, 7, "no diff at all", "@@ -x +y @@\n+a", "+++\n---\n", "@@ -1 +1 @@\n\\ No newline at end of file",
                                 "\r\n\x00\x1b[31m+"])
def test_text_that_is_no_difference_makes_no_fault(odd: Any) -> None:
    made = diffs.rows(odd, "x.py", odd)
    assert all(str(row["html"]) is not None for row in made["rows"])


def test_long_differences_and_long_lines_are_cut() -> None:
    made = diffs.rows("@@ -1 +1 @@\n" + "+x = 1\n" * 5000 + "+" + "y" * 5000, "x.py")
    assert len(made["rows"]) == diffs.MOST_LINES
    assert made["more"] == 5002 - diffs.MOST_LINES
    assert made["added"] == 5001
    assert len(str(diffs.rows("@@ -1 +1 @@\n+" + "y" * 5000, "x.py")["rows"][1]["html"])) < 1100


def test_what_cannot_be_seen_is_shown_as_such() -> None:
    row = diffs.rows("@@ -1 +1 @@\n+a\u202eb\x07c", "x.txt")["rows"][1]
    assert str(row["html"]) == "a\ufffdb\ufffdc"


def test_only_a_newline_ends_a_line() -> None:
    made = diffs.rows("@@ -1,2 +1,3 @@\n a\x0c\n+b\u2028c\r\n d\n", "x.py")
    assert [(row["kind"], row["new"]) for row in made["rows"]] == [("at", None), ("same", 1), ("add", 2), ("same", 3)]


@pytest.mark.parametrize("path", ["x.yaml", "x.ini", "x.cu", "x.adl", "x.htaccess", "x.au3", "x.sh-session", "Dockerfile"])
def test_a_node_cannot_choose_a_lexer_that_needs_minutes(path: str) -> None:
    """Many of Pygments' lexers do, for 20 KB of one character: text and name of a file come from the node."""
    made = diffs.rows("@@ -1 +1 @@\n" + f"+{'@' * 900}!\n" * 400, path)
    assert len(made["rows"]) == 401 and "<span" not in str(made["rows"][1]["html"])


def test_no_lexer_sees_a_line_in_its_whole_length(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    spy = {"get_tokens": lambda self, text: seen.append(text) or [(Text, text)]}
    monkeypatch.setitem(diffs.LEXERS, "py", type("Spy", (diffs.LEXERS["py"],), spy))
    diffs.rows("@@ -1 +1,2 @@\n+" + "::" * 100_000 + "\n+x = 1\n", "x.py")
    assert seen and max(len(line) for text in seen for line in text.split("\n")) <= diffs.MOST_WIDTH
