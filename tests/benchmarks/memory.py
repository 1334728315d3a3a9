"""How much memory did this process hold at most? The kernel's VmHWM: `ru_maxrss` of a started process also holds what its parent held before."""

from pathlib import Path


def peak_bytes() -> int:
    """Largest resident memory of this process since its start, or since `forget_peak`."""
    return _field("VmHWM")


def resident_bytes() -> int:
    """Resident memory now."""
    return _field("VmRSS")


def forget_peak() -> None:
    """Let the peak start anew from what is resident now."""
    Path("/proc/self/clear_refs").write_text("5")


def _field(name: str) -> int:
    return int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name + ":"))) * 1024
