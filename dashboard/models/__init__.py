"""What the console remembers. The node knows facts; these rows are intent and history."""

from __future__ import annotations

from dashboard.models.accounts import AuditEntry, SignInToken
from dashboard.models.benchmarks import BenchmarkLevel, BenchmarkRun, ImportedFile, NoiseFloor
from dashboard.models.cleanup import ArtifactKind, ArtifactScan, PurgedArtifact, ScannedArtifact
from dashboard.models.jobs import Job, JobEvent, JobLock, JobStep, LockFence
from dashboard.models.nodes import Channel, Node, Service
from dashboard.models.shelf import ShelvedPatch

__all__ = ["ArtifactKind", "ArtifactScan", "AuditEntry", "BenchmarkLevel", "BenchmarkRun", "Channel", "ImportedFile", "Job", "JobEvent", "JobLock",
           "JobStep", "LockFence", "Node", "NoiseFloor", "PurgedArtifact", "ScannedArtifact", "Service", "ShelvedPatch", "SignInToken"]
