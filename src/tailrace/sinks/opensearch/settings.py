"""What an OpenSearch sink has of its own in the pipeline file."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from tailrace import config

MIB = 1024 * 1024
MOST_BULK_BYTES = 64 * MIB
"""A server takes 100 MB in one request unless it is told otherwise."""
AS_SENT = {"default_pipeline": "_none", "final_pipeline": "_none"}
"""Of every index of ours: what is written is what is there, whatever a template of the server has for others."""


class OpenSearchSettings(config.Settings, frozen=True):
    """A sink of search documents: OpenSearch."""

    documents: (
        Annotated[
            tuple[str, ...],
            Meta(description="the documents of the file that this sink holds; default: all of them"),
        ]
        | None
    ) = None
    flat: (
        Annotated[
            tuple[str, ...],
            Meta(
                description="patterns on schema.table: tables held as they are, a document a row; default: all that"
                " no document of the file is made of"
            ),
        ]
        | None
    ) = None
    prefix: Annotated[
        str,
        Meta(
            pattern="^([a-z0-9][a-z0-9_.-]{0,59})?$",
            description="what the names of all indexes and aliases begin with: lower case letters, digits, _ . and -",
        ),
    ] = ""
    shards: Annotated[int, Meta(ge=1, le=1024, description="shards of an index; counts from its next copy on")] = 1
    replicas: Annotated[int, Meta(ge=0, le=64, description="replicas of an index; none while it is seeded")] = 1
    refresh_interval: Annotated[
        str, Meta(pattern=r"^(-1|\d{1,6}(ms|s|m))$", description="how soon searches see a change, such as `1s`")
    ] = "1s"
    bulk_bytes: Annotated[
        int, Meta(ge=1024, le=MOST_BULK_BYTES, description="how much is sent in one bulk request, up to 64 MiB")
    ] = 5 * MIB
    bulk_timeout_seconds: Annotated[
        float, Meta(ge=1, le=3600, description="how long an answer to a bulk request is waited for")
    ] = 60.0
    ca_file: (
        Annotated[str, Meta(min_length=1, description="certificates that opensearchs:// trusts; default: certifi's")]
        | None
    ) = None
    verify_certificate: Annotated[
        bool, Meta(description="whether opensearchs:// asks for a certificate that it trusts")
    ] = True
