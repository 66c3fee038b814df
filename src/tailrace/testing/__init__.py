"""Real servers, workloads, failpoints and content comparison for tests of tailrace and of connectors for it."""

from tailrace import failpoints as failpoints
from tailrace.testing.postgres import PostgresServer as PostgresServer
from tailrace.testing.processes import ServerFailed as ServerFailed
from tailrace.testing.processes import ServerUnavailable as ServerUnavailable
