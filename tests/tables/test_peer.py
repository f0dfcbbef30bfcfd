"""Memory that another process shares: what decides on which GPU it is opened, and refusals."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from parity.base.errors import UserError
from tables import peer


def test_memory_of_another_gpu_is_opened_for_the_own_one(monkeypatch):
    def rebuilt(*arguments):
        return arguments

    monkeypatch.setattr(peer, "rebuild_cuda_tensor", rebuilt)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    sent = tuple(range(15))
    monkeypatch.setattr(pickle, "loads", lambda content: (rebuilt, sent))
    opened = peer._opened(b"")
    assert opened[peer._DEVICE] == 5
    assert [value for place, value in enumerate(opened) if place != peer._DEVICE] == [
        value for value in sent if value != peer._DEVICE
    ]


def test_the_place_of_the_gpu_s_number_is_pytorch_s():
    arguments = list(range(15))
    names = rebuild_cuda_tensor.__code__.co_varnames
    assert names[arguments[peer._DEVICE]] == "storage_device"


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(peer, "has_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda device, other: other.index != 2)


def test_gpus_without_a_link_are_refused(two_gpus):
    peer._require_peers(1, 2, torch.device("cuda", 1))
    with pytest.raises(UserError, match="rank 0: cuda:2 is memory that cuda:0 cannot read; use the engine"):
        peer._require_peers(0, 3, torch.device("cuda", 0))


def test_without_triton_it_is_refused(two_gpus, monkeypatch):
    monkeypatch.setattr(peer, "has_triton", lambda: False)
    with pytest.raises(UserError, match="rank 0: peer needs Triton"):
        peer._require_peers(0, 2, torch.device("cuda", 0))
