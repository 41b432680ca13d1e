"""Flags and environment of `tiergate serve`, as one frozen value. What an operator may want to change while it runs
is in the policy instead."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

import msgspec


class Settings(msgspec.Struct, frozen=True):
    policy: str  # the file's path
    host: str = "127.0.0.1"
    port: int = 4000
    workers: int = 1
    grace_s: float = 30.0  # time that open requests get when the gateway is told to stop
    log_level: str = "info"
    local_ports: Mapping[str, int] = {}  # embedded models that another process supervises
    last_good: str = ""  # where workers keep the last policy that worked; empty: nowhere
    watch_s: float = 1.0  # how often the policy file is looked at

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
