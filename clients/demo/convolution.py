"""The network of Mnih et al. (2015) for four Atari frames, and its greedy policy. In PyTorch, for actors too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from netreplay.clients.demo.agent import Network
from netreplay.clients.demo.policy import IntArray

STACK = 4
_VALUES = "layers.9"
"""the last layer, by the name of its parameters"""


class ConvNetwork(Network):
    """Action values: frames uint8 [B, 4, 84, 84], oldest first -> float32 [B, actions]."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(STACK, 32, 8, stride=4), nn.ReLU()),
            *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3, stride=1), nn.ReLU()),
            nn.Flatten(),
            *(nn.Linear(64 * 7 * 7, 512), nn.ReLU()),
            nn.Linear(512, actions),
        )

    def forward(self, frames: Tensor) -> Tensor:
        """Values float32 [B, actions] of the frames uint8 [B, 4, 84, 84]."""
        values: Tensor = self.layers(frames.to(torch.float32, memory_format=torch.contiguous_format) / 255.0)
        return values

    def policy(self) -> ConvPolicy:
        """Its greedy policy; shares the parameters."""
        return ConvPolicy(self)


class ConvPolicy:
    """Acts with the highest of a ConvNetwork's values."""

    def __init__(self, network: ConvNetwork) -> None:
        self._network = network

    @classmethod
    def of(cls, tensors: Mapping[str, Any]) -> ConvPolicy:
        """`tensors`: a ConvNetwork's parameters by name, arrays."""
        network = ConvNetwork(len(tensors[f"{_VALUES}.bias"]))
        network.load_state_dict({name: torch.tensor(np.asarray(array)) for name, array in tensors.items()})
        return cls(network)

    def greedy(self, observations: npt.NDArray[Any]) -> IntArray:
        """The best action int64 [N] for each stack of frames, uint8 [N, 4, 84, 84]."""
        with torch.inference_mode():
            actions: IntArray = self._network(torch.from_numpy(observations)).argmax(dim=1).numpy()
        return actions
