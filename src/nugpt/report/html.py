"""HTML as values: whatever is not markup already is escaped, so that forgetting it does no harm."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote


class Html(str):
    """Text that is markup; everything else is not."""

    __slots__ = ()


Child = Html | str | int | float | None
_VOID = ("img", "meta", "br")


def escaped(child: Child) -> Html:
    """Markup as it is, anything else as text."""
    if child is None:
        return Html("")
    return child if isinstance(child, Html) else Html(html.escape(str(child), quote=False))


def joined(children: Iterable[Child], between: str = "") -> Html:
    """One after the other."""
    return Html(escaped(between).join(escaped(child) for child in children))


def tag(element: str, /, *children: Child, **attributes: str | None) -> Html:
    """An element; `class_` and `data_x` are attributes whose names Python does not take, none leaves one out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value, quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Html(f"<{element}{given}>" if element in _VOID else f"<{element}{given}>{joined(children)}</{element}>")


def table(columns: Sequence[Child], rows: Iterable[Sequence[Child]], right: Sequence[int] = ()) -> Html:
    """A table that scrolls by itself where the page is too narrow; `right` names the columns of numbers.

    Columns without a name have no head.
    """
    head = tag("tr", *(tag("th", column, class_="n" if i in right else None) for i, column in enumerate(columns)))
    body = [tag("tr", *cells(row, right)) for row in rows]
    return scrolling(tag("table", tag("thead", head) if any(columns) else None, tag("tbody", *body)))


def cells(row: Sequence[Child], right: Sequence[int] = ()) -> list[Html]:
    """The cells of one row; the longest words get room, so that a narrow page scrolls rather than stacks them."""
    longest = [len(re.sub(r"<[^>]*>", "", escaped(cell))) for cell in row]
    return [
        tag("td", cell, class_="n" if i in right else "w" if longest[i] > 24 else None) for i, cell in enumerate(row)
    ]


def scrolling(content: Html) -> Html:
    """A box that scrolls sideways, reachable by keyboard."""
    return tag("div", content, class_="scroll", tabindex="0")


def link(target: str, text: Child) -> Html:
    """To a place of this page."""
    return tag("a", text, href=f"#{target}")


def file_link(path: str, text: Child) -> Html:
    """To a file beside the page; `./` keeps a name with a colon from being taken for a scheme."""
    quoted = quote(path)
    return tag("a", text, href=quoted if quoted.startswith(("./", "../")) else f"./{quoted}")


def json_block(name: str, value: Any) -> Html:
    """Data for the page's script; no character of it can end the block or begin a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{html.escape(name)}">{text}</script>')


def script(source: str) -> Html:
    """A script in the page; the sequence that would end it early is taken apart."""
    return Html(f"<script>{script_text(source)}</script>")


def script_text(source: str) -> str:
    """The script as it stands between its tags."""
    return source.replace("</script", "<\\/script").replace("<!--", "<\\!--")
