"""`tailrace check` of a MySQL or MariaDB source: what has to be set, with the statement that sets it."""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection
from pymysql.err import MySQLError

from tailrace.errors import SourceError, SourceUnavailable
from tailrace.sources.base import Finding
from tailrace.sources.findings import fail, failure, ok, warn
from tailrace.sources.mysql import preflight_tables
from tailrace.sources.mysql.connection import Server, connect, read_server, rows, server_of, source_errors
from tailrace.sources.mysql.positions import file_position
from tailrace.sources.mysql.settings import Moment, MysqlSettings
from tailrace.sources.mysql.wanted import Wanted

DAY = 86_400
_VARIABLES = (
    *("log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_row_value_options", "gtid_mode"),
    *(
        "log_slave_updates",
        "log_replica_updates",
        "wsrep_on",
        "binlog_expire_logs_seconds",
        "expire_logs_days",
        "server_id",
        "innodb_native_foreign_keys",
    ),
)


def check(url: str, wanted: Wanted, settings: MysqlSettings, server_id: int) -> list[Finding]:
    """All that can be looked at; the first that is in the way of the rest ends it."""
    try:
        with source_errors(url, "checking the source"), connect(url) as connection:
            return _checked(connection, url, wanted, settings, server_id)
    except SourceError as error:
        return [failure("connection", error, "check host, port, user and password in source.url")]


def _checked(
    connection: Connection[Any], url: str, wanted: Wanted, settings: MysqlSettings, server_id: int
) -> list[Finding]:
    server = read_server(connection)
    names = ", ".join(f"'{name}'" for name in _VARIABLES)
    found = rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    variables = {str(name).lower(): str(value) for name, value in found}
    findings = [ok("connection", f"{server.product} {server.text} at {server_of(url)}")]
    findings += _log(variables, server)
    findings += _replicated(connection, variables)
    findings += _expiry(variables)
    findings += _server_id(variables, server_id)
    findings += _privileges(connection, server, settings)
    if variables.get("log_bin") == "ON":
        findings += _left_out(connection, wanted)
    return findings + preflight_tables.check(connection, wanted, settings, variables)


def _log(variables: dict[str, str], server: Server) -> list[Finding]:
    if variables.get("log_bin") != "ON":
        text = "the server writes no binary log (log_bin is OFF)"
        return [
            fail("binary log", text, "add log_bin = binlog and a server_id to the server's settings, and restart it")
        ]
    wanted = {"binlog_format": "ROW", "binlog_row_metadata": "FULL", "binlog_row_image": "FULL"}
    reasons = {
        "binlog_format": "statements do not tell which rows they changed; sessions that are open keep theirs",
        "binlog_row_metadata": "row events lack the names of columns",
        "binlog_row_image": "row events lack columns",
    }
    findings: list[Finding] = []
    for name, value in wanted.items():
        now = variables.get(name, "")
        if now.upper() == value or (name == "binlog_format" and not now):
            findings.append(ok(name, value))
        else:
            findings.append(fail(name, f"{now or 'not there'}: {reasons[name]}", f"SET GLOBAL {name} = '{value}';"))
    if "PARTIAL_JSON" in variables.get("binlog_row_value_options", ""):
        text = "PARTIAL_JSON: updates of documents come in parts"
        findings.append(fail("binlog_row_value_options", text, "SET GLOBAL binlog_row_value_options = '';"))
    if not server.has_gtids:
        text = (
            "OFF: places are files of this server, and no promoted replica can be gone on with; tables without a key,"
            " and servers with semi-synchronous replicas, are copied under source.moment: lock only"
        )
        findings.append(
            warn("gtid_mode", text, "see the manual on enabling GTIDs online, or set source.moment to lock")
        )
    return findings


def _replicated(connection: Connection[Any], variables: dict[str, str]) -> list[Finding]:
    """A replica may leave what it was sent out of its own log. That is how MariaDB begins."""
    logs = variables.get("log_replica_updates", variables.get("log_slave_updates", "ON"))
    if logs == "ON" or not (variables.get("wsrep_on") == "ON" or _is_replica(connection)):
        return []
    text = "the server is a replica, and what it is sent is not in its binary log (log_replica_updates is OFF)"
    fix = "add log_slave_updates = ON to the server's settings and restart it, or read from the primary"
    return [fail("replicated changes", text, fix)]


def _is_replica(connection: Connection[Any]) -> bool:
    """By whatever the role may ask for: a status that all may see, and settings of the replica."""
    found = rows(connection, "SHOW GLOBAL STATUS WHERE Variable_name IN ('Slaves_running', 'Slave_running')")
    if any(str(value) not in ("0", "OFF") for _, value in found):
        return True
    for statement in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
        try:
            return bool(rows(connection, statement))
        except MySQLError:  # an older server's word, or a privilege is lacking
            continue
    return False


def _expiry(variables: dict[str, str]) -> list[Finding]:
    """How long a pipeline may be down."""
    seconds = float(variables.get("binlog_expire_logs_seconds") or 0)
    seconds = seconds or DAY * float(variables.get("expire_logs_days") or 0)
    if seconds and seconds < DAY:
        text = f"the server deletes its log after {seconds / 3600:g} hours: a pipeline that is down for longer is lost"
        return [warn("log retention", text, "SET GLOBAL binlog_expire_logs_seconds = 604800;")]
    return [ok("log retention", f"{seconds / DAY:g} days" if seconds else "no limit")]


def _server_id(variables: dict[str, str], server_id: int) -> list[Finding]:
    if variables.get("server_id") == str(server_id):
        text = f"{server_id} is the id of the server itself"
        return [fail("server id", text, "choose another with source.server_id")]
    return [ok("server id", f"we are replica {server_id}")]


def _privileges(connection: Connection[Any], server: Server, settings: MysqlSettings) -> list[Finding]:
    granted = " ".join(str(row[0]).upper() for row in rows(connection, "SHOW GRANTS"))
    everywhere = " ".join(part for part in granted.split("GRANT ") if " ON *.* " in part)
    has_all = "ALL PRIVILEGES" in everywhere
    needed = {
        "REPLICATION SLAVE": ("REPLICATION SLAVE",),
        "REPLICATION CLIENT": ("REPLICATION CLIENT", "BINLOG MONITOR"),
    }
    if settings.moment is Moment.LOCK:
        needed["RELOAD"] = ("RELOAD",)
    lacking = [name for name, names in needed.items() if not has_all and not any(each in everywhere for each in names)]
    user = str(rows(connection, "SELECT CURRENT_USER()")[0][0])
    if lacking:
        name, _, host = user.rpartition("@")
        text = f"{user} lacks {' and '.join(lacking)}"
        return [fail("privileges", text, f"GRANT {', '.join(lacking)} ON *.* TO '{name}'@'{host}';")]
    del server
    return [ok("privileges", f"{user} may read the binary log")]


def _left_out(connection: Connection[Any], wanted: Wanted) -> list[Finding]:
    """Databases that the server does not log."""
    try:
        file_position(connection)
        found = rows(connection, _status_statement(connection))
    except SourceUnavailable:
        raise
    except Exception:  # lacking a privilege, which was said above
        return []
    only, ignored = (set(filter(None, str(part or "").split(","))) for part in found[0][2:4])
    tables = preflight_tables.listed(connection, wanted)
    missing = {t.schema for t in tables if (only and t.schema not in only) or t.schema in ignored}
    if not missing:
        return []
    text = f"binlog_do_db or binlog_ignore_db leaves out {', '.join(sorted(missing))}"
    return [
        fail(
            "logged databases",
            text,
            "take these settings out of the server's file and restart it, or exclude the tables",
        )
    ]


def _status_statement(connection: Connection[Any]) -> str:
    server = read_server(connection)
    is_new = not server.is_mariadb and server.version >= (8, 2)
    return "SHOW BINARY LOG STATUS" if is_new else "SHOW MASTER STATUS"
