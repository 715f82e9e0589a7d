"""In place of the old gym: an environment with the shapes of roboschool's walker, and noise in it."""

import numpy as np

N_OBSERVATIONS, N_ACTIONS = 22, 6


class Space:
    """The shape of an observation or action."""

    def __init__(self, length: int) -> None:
        self.shape = (length,)


class Walker:
    """An environment whose observations and rewards are noise."""

    observation_space, action_space = Space(N_OBSERVATIONS), Space(N_ACTIONS)

    def __init__(self) -> None:
        self._chance = np.random.default_rng(0)

    def reset(self) -> np.ndarray:
        """Return a first observation."""
        return self._chance.normal(size=N_OBSERVATIONS)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, dict[str, object]]:
        """Return an observation, a reward, that it is not the end, and nothing more."""
        return self.reset(), float(self._chance.normal()), False, {}

    def seed(self, seed: int) -> None:
        """Take no notice of a seed."""

    def close(self) -> None:
        """Have nothing to close."""


def make(name: str) -> Walker:
    """Return the same environment for every name."""
    return Walker()
