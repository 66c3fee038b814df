"""How text is taken apart in OpenSearch: analyzers and normalizers of ours, each only in an index that uses it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

TEXT = "tailrace_text"
IDENTIFIER, IDENTIFIER_SEARCH = "tailrace_identifier", "tailrace_identifier_search"
LOWERCASE = "tailrace_lowercase"

Analysis = dict[str, dict[str, Any]]

_FOLDED = ["lowercase", "asciifolding"]
_PARTS = {"type": "word_delimiter_graph", "catenate_all": True, "preserve_original": True}

_KNOWN: dict[str, Analysis] = {
    TEXT: {"analyzer": {TEXT: {"type": "custom", "tokenizer": "standard", "filter": _FOLDED}}},
    IDENTIFIER: {
        "analyzer": {
            IDENTIFIER: {
                "type": "custom",
                "tokenizer": "whitespace",
                "filter": ["tailrace_parts", "flatten_graph", *_FOLDED],
            },
        },
        "filter": {"tailrace_parts": _PARTS},
    },
    IDENTIFIER_SEARCH: {  # its parts are a phrase: `SKU_123` finds SKU-123-B, and not every 123
        "analyzer": {
            IDENTIFIER_SEARCH: {"type": "custom", "tokenizer": "whitespace", "filter": ["tailrace_parts", *_FOLDED]},
        },
        "filter": {"tailrace_parts": _PARTS},
    },
    LOWERCASE: {"normalizer": {LOWERCASE: {"type": "custom", "filter": _FOLDED}}},
}


def order_of(variants: Sequence[str]) -> tuple[str, Analysis]:
    """A normalizer that writes the place of each variant, so that a keyword sorts in their order; and its name.

    Of the rules that fit where a text begins the longest is taken: for a variant, that is its own.
    """
    name = f"tailrace_order_{hashlib.sha256(repr(list(variants)).encode()).hexdigest()[:12]}"
    width = len(str(len(variants)))
    rules = [f"{_escaped(variant)} => {place:0{width}}" for place, variant in enumerate(variants)]
    return name, {
        "normalizer": {name: {"type": "custom", "char_filter": [name]}},
        "char_filter": {name: {"type": "mapping", "mappings": rules}},
    }


def _escaped(text: str) -> str:
    """All but plain letters and digits as `\\uXXXX`, which the rules of a mapping know; blanks would be cut off."""
    return re.sub(r"[^A-Za-z0-9]", lambda found: _units(found[0]), text)


def _units(character: str) -> str:
    return re.sub("(.{4})", r"\\u\1", character.encode("utf-16-be").hex())


def known(name: str) -> Analysis:
    return _KNOWN[name]
