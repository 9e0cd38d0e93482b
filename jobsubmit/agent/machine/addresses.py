"""The address of a host at which the other hosts of a job reach it, and the interface that has this address."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

_SIOCGIFFLAGS, _SIOCGIFADDR, _IFF_RUNNING = 0x8913, 0x8915, 0x40  # see netdevice(7)
_ANY_FAR_ADDRESS = ("192.0.2.1", 9)  # of a network for documentation (RFC 5737); nothing is sent there
_LONGEST_NAME = 15


class NoAddressError(Exception):
    """The host has no address that others can reach; the message is one line that says why."""


def own_address(interface: str | None, to: str | None = None) -> str:
    """Return the address of this host: on an interface, or where a connection to `to` starts, or where we logged in.

    Raises NoAddressError.
    """
    if interface:
        address = address_of(interface)
        if not address:
            known = ", ".join("%s %s" % pair for pair in sorted(all_addresses().items())) or "none"
            raise NoAddressError("it has no interface %s with an IPv4 address (it has: %s)" % (interface, known))
        return address
    if to:
        return _source_of((to, 9))
    parts = os.environ.get("SSH_CONNECTION", "").split()
    logged_in_at = parts[2] if len(parts) == 4 else ""  # noqa: PLR2004 - client, its port, server, its port (ssh(1))
    if logged_in_at and not _is_loopback(logged_in_at):
        return logged_in_at
    address = _source_of(_ANY_FAR_ADDRESS)
    others = [other for other in all_addresses().values() if not _is_loopback(other)]
    if not address and not others:
        raise NoAddressError("it has no address besides loopback")
    return address or others[0]


def _source_of(target: tuple[str, int]) -> str:
    """Return the address from which a connection to a target starts; empty if there is no way to it."""
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def all_addresses() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one."""
    found = {name: address_of(name) for _, name in socket.if_nameindex()}
    return {name: address for name, address in found.items() if address}


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface; empty if it has none, or does not exist."""
    answer = _ask_kernel(interface, _SIOCGIFADDR)
    return socket.inet_ntoa(answer[20:24]) if answer else ""


def has_link(interface: str) -> bool:
    """Return whether an interface is up and connected; False also if it does not exist."""
    answer = _ask_kernel(interface, _SIOCGIFFLAGS)
    return bool(answer) and bool(struct.unpack_from("H", answer, 16)[0] & _IFF_RUNNING)


def _ask_kernel(interface: str, what: int) -> bytes:
    """Return the kernel's answer about an interface (an ifreq); empty if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:_LONGEST_NAME])
        try:
            return fcntl.ioctl(probe.fileno(), what, request)
        except OSError:
            return b""


def interface_of(address: str) -> str:
    """Return the interface that has an address; empty if it is not known."""
    return next((name for name, own in all_addresses().items() if own == address), "")
