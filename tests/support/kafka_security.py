"""A broker that asks who we are: passwords, certificates of a CA of our own, and rights that are given one by one.

One broker has a listener for each way in. Whoever comes by the plain one may do everything, so that is the tests' own.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from support.kafka import KafkaCluster

USER, PASSWORD = "alice", "s3cret-p@ss/word"
LISTENERS = {
    "SASL": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "MTLS": "SSL",
    "SASLTLS": "SASL_SSL",
}
MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"


class Identity(NamedTuple):
    """A certificate and its key, as PEM."""

    certificate: str
    key: str


class Authority:
    """A CA of our own; `folder` has its certificate as `NAME.pem`."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self.folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"{name} of tests")
        own = self._built(self._name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.certificate = _pem(own.sign(self._key, hashes.SHA256()))
        self.file = folder / f"{name}.pem"
        self.file.write_text(self.certificate)

    def issue(self, name: str, *, address: str | None = None) -> Identity:
        """For a client, or for a server at `address`."""
        key = ec.generate_private_key(ec.SECP256R1())
        built = self._built(_named(name), key.public_key())
        if address is not None:
            names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
            built = built.add_extension(names, critical=False)
        return Identity(_pem(built.sign(self._key, hashes.SHA256())), _key_pem(key))

    def issue_files(self, name: str, password: str) -> tuple[Path, Path]:
        """A client's certificate and its key, which is encrypted."""
        identity = self.issue(name)
        key = serialization.load_pem_private_key(identity.key.encode(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_text(identity.certificate)
        files[1].write_text(_key_pem(key, password))
        return files

    def _built(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey, password: str | None = None) -> str:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption).decode()


def start(authority: Authority) -> KafkaCluster:
    """A broker with all of LISTENERS, where USER has no right yet."""
    server = authority.issue("broker", address="127.0.0.1")
    settings: dict[str, object] = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": MECHANISMS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": _property(server.certificate),
        "ssl.keystore.key": _property(server.key),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": _property(authority.certificate),
        "listener.name.mtls.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": r"RULE:^CN=(.*?)$/$1/,DEFAULT",
    }
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required"
    for listener in ("sasl", "sasltls"):
        name = f"listener.name.{listener}"
        settings[f"{name}.plain.sasl.jaas.config"] = f'{plain} user_{USER}="{PASSWORD}";'
        settings[f"{name}.scram-sha-256.sasl.jaas.config"] = f"{scram};"
        settings[f"{name}.scram-sha-512.sasl.jaas.config"] = f"{scram};"
    cluster = KafkaCluster.start(settings=settings, listeners=LISTENERS)
    try:
        _add_scram_users(administrator(cluster))
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _property(text: str) -> str:
    return text.replace("\n", "\\n")


def administrator(cluster: KafkaCluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0})


def _add_scram_users(admin: AdminClient) -> None:
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        wanted = UserScramCredentialUpsertion(USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        admin.alter_user_scram_credentials([wanted])[USER].result(60)


class Grant(NamedTuple):
    """A right of USER: an operation on a resource, by its name or the beginning of it."""

    kind: ResourceType
    name: str
    operation: AclOperation
    by_prefix: bool = False

    def binding(self) -> AclBinding:
        pattern = ResourcePatternType.PREFIXED if self.by_prefix else ResourcePatternType.LITERAL
        who, allowed = f"User:{USER}", AclPermissionType.ALLOW
        return AclBinding(self.kind, self.name, pattern, who, "*", self.operation, allowed)

    def filter(self) -> AclBindingFilter:
        one = self.binding()
        return AclBindingFilter(
            one.restype,
            one.name,
            one.resource_pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )


def allow(admin: AdminClient, *grants: Grant) -> None:
    for answer in admin.create_acls([grant.binding() for grant in grants]).values():
        answer.result(60)


def take_away(admin: AdminClient, *grants: Grant) -> None:
    for answer in admin.delete_acls([grant.filter() for grant in grants]).values():
        answer.result(60)


def needed(prefix: str, state: str, *, creating: bool = True) -> list[Grant]:
    """The rights that docs/kafka.md lists, for topics with a prefix, and no other."""
    topic, write, read = ResourceType.TOPIC, AclOperation.WRITE, AclOperation.READ
    grants = [
        Grant(topic, prefix, write, by_prefix=True),
        Grant(topic, state, write),
        Grant(topic, state, read),
        Grant(ResourceType.GROUP, state, read),
        Grant(ResourceType.TRANSACTIONAL_ID, state, write),
    ]
    if creating:
        grants += [Grant(topic, prefix, AclOperation.CREATE, by_prefix=True), Grant(topic, state, AclOperation.CREATE)]
    return grants
