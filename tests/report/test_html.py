"""Markup is made, never pasted: text stays text wherever it stands."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.small import HOSTILE

from nugpt.report.html import Html, escaped, file_link, joined, json_block, link, script, table, tag


class Reader(HTMLParser):
    """What a browser would see: elements, attributes, text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


# A parser turns carriage returns into line feeds before anything else, and drops NULs.
TEXT = st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]))


@given(TEXT)
def test_text_stays_text(text: str) -> None:
    seen = Reader(tag("p", text, title=text))
    assert seen.text == text
    assert seen.elements == [("p", {"title": text})]


def test_markup_is_kept_and_text_beside_it_escaped() -> None:
    assert joined([tag("b", "<"), "<", None, 3]) == "<b>&lt;</b>&lt;3"
    assert escaped(Html("<br>")) == "<br>"
    assert tag("td", class_="n", data_x=None, aria_label='"') == '<td class="n" aria-label="&quot;"></td>'


@given(TEXT)
def test_data_for_the_script_cannot_leave_its_block(text: str) -> None:
    block = json_block("charts", {text: [text]})
    inside = re.fullmatch(r'<script type="application/json" id="charts">(.*)</script>', block, flags=re.DOTALL)
    assert inside is not None
    assert not re.search(r"[<>&]", inside[1])
    assert json.loads(inside[1]) == {text: [text]}


def test_a_number_that_json_does_not_have_is_our_own_mistake() -> None:
    with pytest.raises(ValueError, match="JSON"):
        json_block("charts", float("nan"))


def test_a_script_cannot_end_early() -> None:
    assert script("a = '</script>'") == "<script>a = '<\\/script>'</script>"


def test_links_lead_into_the_page_or_to_files_beside_it() -> None:
    assert Reader(link(HOSTILE, "x")).elements == [("a", {"href": f"#{HOSTILE}"})]
    for path in ("javascript:alert(1)", "a b/c", "../runs/x"):
        href = Reader(file_link(path, "x")).elements[0][1]["href"]
        assert href is not None
        assert href.startswith(("./", "../"))


def test_a_table_without_named_columns_has_no_head() -> None:
    assert "thead" not in table(["", ""], [["a", 1]])
    assert Reader(table(["<x>"], [["<y>"]])).text == "<x><y>"
