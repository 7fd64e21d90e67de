"""What protects a case's traffic: the transform, the mode and the addresses, in the words of `ip
xfrm` and of scapy."""

import dataclasses
import hashlib
import ipaddress


@dataclasses.dataclass(frozen=True)
class Transform:
    """One ESP transform. Key lengths in bytes, with the salt; ICV lengths in bits, as `ip xfrm`
    has them."""

    name: str
    aead: str = ""
    cipher: str = ""
    auth: str = ""
    key_bytes: int = 0
    auth_key_bytes: int = 0
    icv_bits: int = 0
    scapy_cipher: str = ""
    scapy_auth: str = ""

    def words(self, secret):
        key, auth_key = secret[: self.key_bytes], secret[-self.auth_key_bytes :]
        if self.aead:
            return f"aead {self.aead} 0x{key.hex()} {self.icv_bits}"
        cipher = f"enc {self.cipher} 0x{key.hex()}" if key else f"enc {self.cipher} \"\""
        return f"auth-trunc {self.auth} 0x{auth_key.hex()} {self.icv_bits} {cipher}"

    def scapy(self, secret):
        """The arguments of scapy's SecurityAssociation."""
        arguments = {"crypt_algo": self.scapy_cipher, "crypt_key": secret[: self.key_bytes] or None}
        if self.aead:
            return arguments | {"crypt_icv_size": self.icv_bits // 8}
        return arguments | {"auth_algo": self.scapy_auth, "auth_key": secret[-self.auth_key_bytes :]}


def _aead(name, kernel, scapy, key_bytes, icv_bits=128):
    return Transform(name, aead=kernel, scapy_cipher=scapy, key_bytes=key_bytes, icv_bits=icv_bits)


GCM, CCM, CHACHA = "rfc4106(gcm(aes))", "rfc4309(ccm(aes))", "rfc7539esp(chacha20,poly1305)"
GCM_128 = _aead("gcm128", GCM, "AES-GCM", 20)
GCM_192 = _aead("gcm192", GCM, "AES-GCM", 28)
GCM_256 = _aead("gcm256", GCM, "AES-GCM", 36)
CHACHA20_POLY1305 = _aead("chacha20poly1305", CHACHA, "CHACHA20-POLY1305", 36)
CCMS = [
    _aead(f"ccm{bits}-icv{icv}", CCM, "AES-CCM", bits // 8 + 3, icv)
    for bits in (128, 192, 256)
    for icv in (64, 96, 128)
]

# (name, kernel's name, scapy's name, key bytes)
CIPHERS = [
    ("null", "ecb(cipher_null)", "NULL", 0),
    ("cbc128", "cbc(aes)", "AES-CBC", 16),
    ("cbc192", "cbc(aes)", "AES-CBC", 24),
    ("cbc256", "cbc(aes)", "AES-CBC", 32),
    ("ctr128", "rfc3686(ctr(aes))", "AES-CTR", 20),
    ("ctr192", "rfc3686(ctr(aes))", "AES-CTR", 28),
    ("ctr256", "rfc3686(ctr(aes))", "AES-CTR", 36),
]
# (name, kernel's name, scapy's name, key bytes, ICV bits)
AUTHS = [
    ("sha1", "hmac(sha1)", "HMAC-SHA1-96", 20, 96),
    ("sha256-128", "hmac(sha256)", "SHA2-256-128", 32, 128),
    ("sha384-192", "hmac(sha384)", "SHA2-384-192", 48, 192),
    ("sha512-256", "hmac(sha512)", "SHA2-512-256", 64, 256),
    ("cmac", "cmac(aes)", "AES-CMAC-96", 16, 96),
]
COMBINED = {
    f"{cipher}-{auth}": Transform(
        f"{cipher}-{auth}",
        cipher=cipher_kernel,
        auth=auth_kernel,
        key_bytes=cipher_bytes,
        auth_key_bytes=auth_bytes,
        icv_bits=icv,
        scapy_cipher=cipher_scapy,
        scapy_auth=auth_scapy,
    )
    for cipher, cipher_kernel, cipher_scapy, cipher_bytes in CIPHERS
    for auth, auth_kernel, auth_scapy, auth_bytes, icv in AUTHS
}
CBC_SHA1, CBC_SHA256 = COMBINED["cbc128-sha1"], COMBINED["cbc128-sha256-128"]

ALL_THAT_SCAPY_KNOWS = [GCM_128, GCM_192, GCM_256, CHACHA20_POLY1305, *CCMS, *COMBINED.values()]


def secret(*seed):
    """128 bytes that depend on the seed alone; the transform takes its keys from the two ends."""
    return hashlib.shake_128(repr(seed).encode()).digest(128)


@dataclasses.dataclass(frozen=True)
class Side:
    """One end: its address on the wire and the address behind it, by family."""

    outer: dict
    inner: dict
    spi: int  # of what it receives


@dataclasses.dataclass(frozen=True)
class Association:
    """A pair of SAs and the policies that lead to them, as both ends see it."""

    transform: Transform
    mode: str  # transport | tunnel
    inner: int  # 4 | 6, the family of the traffic
    outer: int  # 4 | 6, the family on the wire; in transport mode the same
    extra: str = ""  # more words of `ip xfrm state`: encap, flag esn, replay-window
    reqid: int = 1
    generation: int = 0  # of the keys, for rekeying

    def __str__(self):
        families = f"ipv{self.inner}" if self.inner == self.outer else f"ipv{self.inner}-in-ipv{self.outer}"
        return f"{self.mode}-{self.transform.name}-{families}"

    def endpoints(self, side):
        """The address that this side's traffic has: behind it in tunnel mode, its own in
        transport mode."""
        return side.inner[self.inner] if self.mode == "tunnel" else side.outer[self.outer]

    def secret_towards(self, side):
        """A key of its own for each case: numbers that one used up are gone for that key, also
        after a restart."""
        return secret(str(self), self.extra, side.spi, self.generation)

    def state(self, sender, receiver):
        """The SA from `sender` to `receiver`: the same line at both ends."""
        return (
            f"xfrm state add src {sender.outer[self.outer]} dst {receiver.outer[self.outer]} proto esp"
            f" spi {self.spi_of(receiver)} reqid {self.reqid} mode {self.mode}"
            f" {self.transform.words(self.secret_towards(receiver))} {self.extra}{self._any_family()}"
        ).rstrip()

    def _any_family(self):
        """Linux takes the selector's family for the inner one, unless the state says that it may
        be either."""
        return " flag af-unspec" if self.inner != self.outer else ""

    def spi_of(self, receiver):
        return hex(receiver.spi + self.generation)

    def states(self, here, there):
        return [self.state(here, there), self.state(there, here)]

    def policies(self, here, there):
        return [self._policy("out", here, there), self._policy("in", there, here)]

    def _policy(self, direction, source, destination):
        return (
            f"xfrm policy add src {host_prefix(self.endpoints(source))} dst {host_prefix(self.endpoints(destination))}"
            f" dir {direction} tmpl src {source.outer[self.outer]} dst {destination.outer[self.outer]}"
            f" proto esp reqid {self.reqid} mode {self.mode}"
        )

    def lines(self, here, there):
        return self.states(here, there) + self.policies(here, there)


def host_prefix(address):
    return f"{address}/{ipaddress.ip_address(address).max_prefixlen}"
