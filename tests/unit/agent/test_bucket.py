"""How an agent lists a bucket: page by page, whatever characters are in the names."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import pytest

from jobsubmit.agent.data.bucket import Bucket, BucketError

NAMES = ["data/a b.txt", "data/bell\x07", "data/plus+", "data/tilde~", "data/ü"]


class Server(Bucket):
    """A bucket whose server lists two names a page, and does not know version 2, as OBS."""

    def __init__(self, *, encodes: bool) -> None:
        self.name, self.encodes = "bucket", encodes

    def _ask(self, method: str, key: str, data: bytes | None = None, query: Mapping[str, str] | None = None) -> bytes:
        assert query
        assert "list-type" not in query
        rest = [name for name in NAMES if name > query.get("marker", "")]
        is_url = self.encodes and query.get("encoding-type") == "url"
        items = (
            f"<Contents><Key>{name}</Key><Size>3</Size><ETag>x</ETag></Contents>"
            for name in (quote_plus(name) if is_url else escape(name) for name in rest[:2])
        )
        head = "<EncodingType>url</EncodingType>" if is_url else ""
        more = "true" if len(rest) > 2 else "false"
        return f"<R xmlns='a'>{head}<IsTruncated>{more}</IsTruncated>{''.join(items)}</R>".encode()


def test_all_pages_are_listed_with_their_names() -> None:
    assert [key for key, _, _ in Server(encodes=True).list("data/")] == NAMES


def test_a_list_that_is_not_xml_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(BucketError, match="rename objects that have control characters"):
        list(Server(encodes=False).list("data/"))
