"""A cluster's nodes, GPUs and explanations as JSON data."""

from __future__ import annotations

from typing import Any

from tranche.kubernetes.fleet.explanation import FleetExplanation, NodeGroup
from tranche.kubernetes.fleet.overview import FleetGpu, FleetNodeSummary
from tranche.kubernetes.fleet.pool_usage import HeldDevice


def explanation_document(found: FleetExplanation) -> dict[str, Any]:
    """Why a pod waits, or what it has."""
    return {
        "pod": found.pod,
        "status": str(found.status),
        "message": found.message,
        "wanted": list(found.wanted),
        "given": [given_document(each) for each in found.given],
        "wouldGet": None
        if found.get is None
        else {"node": found.get.node, "devices": [each.name for each in found.get.devices]},
        "nodes": [_group_document(each) for each in found.groups],
        "unnamedNodes": found.unnamed,
        "remedies": list(found.remedies),
        "notes": list(found.notes),
    }


def given_document(holding: HeldDevice) -> dict[str, object]:
    """A device that a claim has."""
    device, given = holding.device, holding.given
    return {
        "node": given.node,
        "device": given.device,
        "gpuUUID": device.uuid,
        "type": device.type,
        "profile": device.profile or None,
        "mechanism": device.mechanism,
        "isolation": device.isolation,
        "memoryBytes": device.memory if given.memory is None else given.memory,
        "computePercent": given.compute or None,
        "claim": f"{holding.claim.namespace}/{holding.claim.name}" if holding.claim.name else None,
        "pods": [f"{holding.claim.namespace}/{name}" for name in holding.claim.pods],
    }


def _group_document(group: NodeGroup) -> dict[str, object]:
    return {
        "reason": group.reason,
        "message": group.text,
        "nodes": list(group.nodes),
        "count": group.count,
        "missingMemoryBytes": group.missing,
        "holders": list(group.holders),
    }


def node_document(summary: FleetNodeSummary) -> dict[str, Any]:
    """A node with its GPUs."""
    node = summary.node
    return {
        "name": node.name,
        "ready": node.ready,
        "unschedulable": node.unschedulable,
        "mode": None if node.mode is None else str(node.mode),
        "resources": dict(node.resources),
        "complete": summary.complete,
        "claims": summary.claims,
        "largestFreeBytes": summary.largest_free,
        "gpus": [gpu_document(each) for each in summary.gpus],
    }


def gpu_document(gpu: FleetGpu) -> dict[str, Any]:
    """A GPU of a node."""
    return {
        "node": gpu.node,
        "minor": gpu.minor,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memoryBytes": gpu.memory,
        "largestFreeBytes": gpu.largest_free,
        "taints": list(gpu.out),
        "held": [given_document(each) for each in gpu.held],
    }
