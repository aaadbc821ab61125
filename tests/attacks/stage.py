"""A gateway with its honest peers, on which attacks are played one after another."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import psutil

from gateway.access.authorization import VERBS, KeyFile
from gateway.commands.certificates import dev_cert
from tests.forked import duplex, fork
from tests.server import Server

from . import attacker
from .attack import Attack
from .measure import Cost, HonestImpact, HonestProcess, Meter, compare
from .target import RELAY_HOST, SOURCE, Report, Target

PORTS = ("http", "sprout", "sprout_tls")
FEW = 300  # descriptors, where there are few
# Seconds beyond its time after which an attack that does not end is killed. One sends 12 MB, which the gateway reads at
# 256 KiB/s or more while the network owes bytes, and at less while it owes time of the loop.
OVERTIME_SECONDS = 180.0
DIALLED = {"link": ("TOPIC_RELAY", "ws"), "broker": ("STREAMR", "ws"), "peer": ("SPROUT", "tcp")}  # by the need of it
REST_SECONDS = 30.0  # seconds in which connections that were closed are gone; the gateway reads what they sent first


def _prepare(
    data: Path, needs: frozenset[str], relay: socket.socket | None
) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """Make what *needs* name; return API keys by name, flags, and variables of a gateway that dials *relay*."""
    keys: dict[str, str] = {}
    flags: list[str] = []
    env: dict[str, str] = {}
    if "keys" in needs:
        file = KeyFile(data / "gateway" / "keys" / "api-keys.json")
        keys = {verb: file.add(verb, [f"{verb}:*"]) for verb in VERBS if verb != "admin"}
        keys["honest"] = file.add("honest", [f"{verb}:honest/*" for verb in VERBS])
        env["TRELLIS_AUTH__GRANTS"] = json.dumps({"sprout:anonymous": ["*:honest/*"]})
    if "tls" in needs:
        certs = data / "certs"
        dev_cert(folder=certs)
        flags += ["--tls-cert", str(certs / "cert.pem"), "--tls-key", str(certs / "key.pem")]
        env |= {"TRELLIS_SPROUT__TLS_PORT": "0", "SSL_CERT_FILE": str(certs / "ca.pem")}
    if "trio" in needs:
        flags += ["--loop", "trio"]
    if relay is not None:
        (section, scheme), (host, port) = next(DIALLED[need] for need in needs & DIALLED.keys()), relay.getsockname()
        peer = {"url": f"{scheme}://{host}:{port}", "channels": ["linked", "linked/*"]}
        env[f"TRELLIS_{section}__PEERS"] = json.dumps([peer])
    return keys, flags, env


@dataclass(frozen=True)
class AttackOutcome:
    """The outcome of an attack: what it reported, cost, and did to honest peers."""

    attack: Attack
    report: Report
    cost: Cost
    wait: HonestImpact

    def faults(self) -> list[str]:
        """Return the bounds that did not hold, of those that must hold on a busy machine too."""
        attack, report = self.attack, self.report
        found = list(report.broken)
        if self.cost.memory > attack.memory:
            found.append(f"{self.cost.memory} MiB of memory, not {attack.memory}")
        if self.wait.lost:
            found.append(f"{self.wait.lost} of {self.wait.sent} honest messages were lost")
        if self.wait.work > attack.patience * 1000:
            found.append(f"the gateway worked {self.wait.work:.0f} ms while an honest peer ({self.wait.where}) waited")
        if attack.dropped is not None:
            found += self._drops(attack.dropped)
        if missing := [words for words in attack.answers if not any(words in answer for answer in report.answers)]:
            found.append(f"no answer to the attacker had {missing}: {dict(report.answers)}")
        return found

    def _drops(self, seconds: float) -> list[str]:
        kept = self.report.connections - len(self.report.dropped)
        late = [drop for drop in self.report.dropped if drop > seconds]
        return [f"{kept} connections were not dropped"] * bool(kept) + [f"dropped after {late[:3]} s"] * bool(late)

    def strict(self) -> list[str]:
        """Return the bounds that did not hold, of those that need a machine on which nothing else runs."""
        slower = [f"the median moved by {self.wait.moved:+.0%}"] * (self.wait.moved > 0.10)
        if self.wait.longest > 250:
            slower.append(f"the longest wait is {self.wait.longest:.0f} ms, of {self.wait.work:.0f} ms of work")
        return slower


class Stage:
    """A gateway that has what attacks need (*needs*, as `Attack.needs`), and its honest peers."""

    def __init__(self, data: Path, needs: frozenset[str] = frozenset(), env: dict[str, str] | None = None) -> None:
        self._relay = socket.create_server((RELAY_HOST, 0)) if needs & DIALLED.keys() else None
        keys, flags, own = _prepare(data, needs, self._relay)
        descriptors = FEW if "few" in needs else None
        rates = {"TRELLIS_LIMITS__RATES": "on"}
        env = {**rates, **own, **(env or {})}
        self.server = Server(data / "gateway", *flags, env=env, descriptors=descriptors, fresh=True)
        http, sprout, tls = (int((self.server.ready.get(name) or ":0").rpartition(":")[2]) for name in PORTS)
        self.target = Target(http, sprout, tls, keys, self._relay)
        url = f"https://{self.server.http}" if "tls" in needs else self.server.http
        authorities = {name: own[name] for name in own if "SSL" in name}
        self.honest = HonestProcess(url, self.server.sprout, self.server.pid, keys.get("honest"), authorities)

        self._process = psutil.Process(self.server.pid)
        self._usual_connections = self.attacker_connections

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.honest.close()
        if self._relay is not None:
            self._relay.close()
        if error is not None:
            self.server.kill()
        else:
            assert self.server.stop(30) == 0
            assert "Traceback" not in self.server.log, self.server.log

    def rest(self, seconds: float = REST_SECONDS) -> bool:
        """Wait until earlier attackers are gone, who would count as a cost of the next; return whether they are."""
        deadline = time.monotonic() + seconds
        while self.attacker_connections > self._usual_connections and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.attacker_connections <= self._usual_connections

    @property
    def attacker_connections(self) -> int:
        """Return how many connections from the address of attackers the gateway has."""
        return sum(bool(each.raddr) and each.raddr.ip == SOURCE for each in self._process.net_connections("tcp"))

    def play(self, attack: Attack, seconds: float, quiet: float) -> AttackOutcome:
        """Play *attack* for its own time or else *seconds*, with *quiet* seconds before and after to compare with."""
        self.rest()
        self.honest.take()
        time.sleep(quiet)
        meter, begin = Meter(self.server.pid), time.monotonic()
        report = run_attack(attack, self.target, attack.seconds or seconds)
        end = time.monotonic()
        cost = meter.read(settle=quiet)
        return AttackOutcome(attack, report, cost, compare(self.honest.take(), begin, end))


def run_attack(attack: Attack, target: Target, seconds: float) -> Report:
    """Run *attack* in a process of its own; return its report."""
    reports, out = duplex()
    with reports:
        process = fork(attacker.play, attack.name, seconds, target, out)
        out.close()
        try:
            if not reports.poll(seconds + OVERTIME_SECONDS):
                raise TimeoutError(f"{attack.name} did not end")
            report: Report = reports.recv()
            return report
        finally:
            process.kill()
            process.join()
