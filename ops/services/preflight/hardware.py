"""Looks below the software: has the kernel said that a GPU is broken, and can GPUs talk to each other over PCIe?"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from ops.gpus.source import GpuSnapshot
from ops.records import ServiceRecord
from ops.services import state, vllm_arguments
from ops.services.preflight.looks import Looks
from ops.services.preflight.machine import split
from ops.services.surroundings import Surroundings

DEVICES, DRIVER = Path("/sys/bus/pci/devices"), Path("/proc/driver/nvidia/gpus")
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)(?:,\s*(.*))?")
# Xid codes after which a GPU serves nobody until it is reset or the machine restarted (NVIDIA, "XID Errors")
_FATAL = {48: "an uncorrectable memory error", 62: "a halt of its internal controller", 79: "it fell off the bus", 95: "an uncontained memory error",
          119: "its system processor does not answer", 120: "an error of its system processor", 140: "an unrecovered memory error",
          154: "it has to be recovered"}
_PCIE_ONLY = re.compile(r"(?i)RTX|GeForce|PCIe|\bL4\b|\bL40S?\b|\bA(?:10|16|2|30|40)\b|Tesla T4|\bT4\b")
_ACS = 0x0D  # the extended capability's number; its control word has the redirects of peer requests and completions in bits 2 and 3


def xid(looks: Looks, record: ServiceRecord, snapshot: GpuSnapshot, lines: Iterable[str] | None = None) -> None:
    """Xid lines of the kernel's log since boot. `lines`: for tests; by default what this user may read of the log."""
    if not record.gpus or snapshot.source != "nvml":
        return
    if lines is None:
        from ops.services import kernel_log

        log = kernel_log.read(_booted_at(), time.time())
        if log.problem:
            looks.add("note", "The kernel's log cannot be read: whether a GPU reported a fault (Xid) is not known", why=log.problem,
                      fix="Let the agent's user into the group systemd-journal (or adm)")
            return
        lines = log.lines
    worst: dict[str, tuple[int, str]] = {}
    for line in lines:
        if (match := _XID.search(line)) and int(match[2]) in _FATAL:
            pci = _plain(match[1])
            if pci not in worst or int(match[2]) == 79:
                worst[pci] = (int(match[2]), match[3] or "")
    places = _places()
    answering = {gpu.index for gpu in snapshot.gpus if not gpu.error}
    indexes = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
    for pci, (code, told) in sorted(worst.items()):
        index = indexes.get(places.get(pci, ""))
        if index is not None and index not in record.gpus:
            continue
        works = index in answering if index is not None else set(record.gpus) <= answering
        named = f"GPU {index} (PCI {pci})" if index is not None else f"A GPU (PCI {pci})"
        words = _FATAL[code]
        looks.add("warning" if works else "stop", f"{named} reported Xid {code} since the machine was started: {words}",
                  why=f"{'It answers now: it was reset since, or will fail again. ' if works else ''}The kernel said: {told[:200]}" if told
                  else "It answers now: it was reset since, or will fail again" if works else "A start cannot help it",
                  fix="If it comes again: power, riser, temperature, then the card" if works else "Drain the node and restart the machine")
    if not worst:
        looks.add("ok", "The kernel has reported no broken GPU since the machine was started")


def peer_to_peer(looks: Looks, record: ServiceRecord, snapshot: GpuSnapshot, found: Surroundings) -> None:
    """GPUs that talk over PCIe alone hang in their first exchange where an IOMMU translates, or a bridge redirects, what they say to each other."""
    names = {gpu.name for gpu in snapshot.gpus if gpu.index in record.gpus}
    if split(record) < 2 or snapshot.source != "nvml" or not names or not all(_PCIE_ONLY.search(name) for name in names):
        return
    without = found.variables.get("NCCL_P2P_DISABLE") == "1"
    own = any(vllm_arguments.name_of(flag) == "--disable-custom-all-reduce" for flag in record.flags)
    if without and (own or split(record) > 2):
        looks.add("ok", "GPUs do not talk to each other directly (NCCL_P2P_DISABLE=1)")
        return
    translated, redirected = _translated(), _redirecting()
    if not translated and not redirected:
        return
    proven = state.last_good(record) is not None
    what = f"the IOMMU translates for {len(translated)} GPUs" if translated else f"{len(redirected)} PCIe bridges redirect (ACS)"
    looks.add("note" if proven else "warning", f"GPUs talk to each other over PCIe alone, and {what}",
              why="On such boxes the first exchange may hang without a word" + (
                  ": this service has started here before, so it works for now" if proven else ""),
              fix="Start the kernel with iommu=pt (or switch the IOMMU off) and ACS off in the firmware; or set NCCL_P2P_DISABLE=1 and add "
                  "--disable-custom-all-reduce")


def _places() -> dict[str, str]:
    """PCI place -> UUID of each GPU, as the driver tells it; empty where it does not."""
    found = {}
    try:
        folders = list(DRIVER.iterdir())
    except OSError:
        return {}
    for folder in folders:
        try:
            text = (folder / "information").read_text(errors="replace")
        except OSError:
            continue  # it is gone from the bus
        if match := re.search(r"GPU UUID:\s*(GPU-\S+)", text):
            found[_plain(folder.name)] = match[1]
    return found


def _plain(pci: str) -> str:
    """`0000:41:00` of `0000:41:00.0` and of `00000000:41:00`."""
    parts = pci.lower().partition(".")[0].split(":")
    return ":".join([parts[0][-4:].rjust(4, "0"), *parts[1:]]) if len(parts) == 3 else pci.lower()


def _gpus() -> list[Path]:
    """PCI devices that are NVIDIA's and GPUs; [] where that cannot be read."""
    found = []
    try:
        devices = list(DEVICES.iterdir())
    except OSError:
        return []
    for device in devices:
        try:
            if (device / "vendor").read_text().strip() == "0x10de" and (device / "class").read_text().startswith("0x03"):
                found.append(device)
        except OSError:
            continue
    return found


def _translated() -> list[str]:
    found = []
    for device in _gpus():
        try:
            kind = (device / "iommu_group" / "type").read_text().strip()
        except OSError:
            continue  # no IOMMU, or an old kernel: nothing is said
        if kind.startswith("DMA"):
            found.append(device.name)
    return found


def _redirecting() -> list[str]:
    """Bridges above the GPUs that send peer traffic up to the root: read from their configuration space, of which only root sees enough."""
    found = set()
    for device in _gpus():
        for part in Path(os.path.realpath(device)).parents:
            if not re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d", part.name):
                break
            try:
                if _redirects((part / "config").read_bytes()):
                    found.add(part.name)
            except OSError:
                continue
    return sorted(found)


def _redirects(config: bytes) -> bool:
    """Whether the ACS capability in a configuration space (4,096 bytes) redirects; False where only its first 64 bytes could be read."""
    place = 0x100
    for _ in range(64):
        if place < 0x100 or place + 8 > len(config):
            return False
        head = int.from_bytes(config[place:place + 4], "little")
        if head & 0xFFFF == _ACS:
            return bool(int.from_bytes(config[place + 6:place + 8], "little") & 0b1100)
        place = head >> 20
    return False


def _booted_at() -> float:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0
