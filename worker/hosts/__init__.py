"""The table of hosts. A host's library is imported only in a worker that uses it, or once by a zygote told to."""

from importlib import import_module

from protocol.agents import driver_of
from protocol.probe import PROBE_HOST
from worker.hosts.base import AgentSession

# name → module and class, as text, so that `echo` never pays for another host's library
HOSTS: dict[str, tuple[str, str]] = {
    "echo": ("worker.hosts.echo", "EchoSession"),
    "builtin": ("worker.hosts.builtin.session", "BuiltinSession"),
    "acp": ("worker.hosts.acp.session", "AcpSession"),
    "pi": ("worker.hosts.pi.session", "PiSession"),
}
_TRIAL = ("worker.hosts.probe", "ProbeSession")  # granted to the supervisor's own throw-away worker; not a peer's


def preload(host: str) -> None:
    """Import all that this host needs. raises KeyError: no such host"""
    module, _ = HOSTS[driver_of(host)]
    import_module(module)


def make(host: str) -> AgentSession:
    """raises KeyError: no such host"""
    module, name = _TRIAL if host == PROBE_HOST else HOSTS[driver_of(host)]
    session: AgentSession = getattr(import_module(module), name)()
    return session
