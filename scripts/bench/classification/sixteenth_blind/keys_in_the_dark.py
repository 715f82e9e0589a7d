"""Recurrent PPO of sb3-contrib with a convolutional LSTM policy on a maze seen only near the agent."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from programs import end_of_step, tell
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack


class DarkMaze(gym.Env):
    """Find the key, then the door; only the surroundings are drawn."""

    metadata = {"render_modes": []}

    def __init__(self, size=24, view=5, limit=60):
        self.size, self.view, self.limit = size, view, limit
        self.observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = spaces.Discrete(5)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.walls = self.np_random.random((self.size, self.size)) < 0.2
        self.agent, self.key, self.door = (self.np_random.integers(0, self.size, 2) for _ in range(3))
        self.has_key, self.time = False, 0
        return self._draw(), {}

    def step(self, action):
        move = np.array([(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0)][int(action)])
        target = np.clip(self.agent + move, 0, self.size - 1)
        if not self.walls[tuple(target)]:
            self.agent = target
        reward = -0.01
        if not self.has_key and (self.agent == self.key).all():
            self.has_key, reward = True, 1.0
        done = bool(self.has_key and (self.agent == self.door).all())
        self.time += 1
        return self._draw(), reward + 5.0 * done, done, self.time >= self.limit, {}

    def _draw(self):
        frame = np.zeros((64, 64, 3), np.uint8)
        cell = 64 // (2 * self.view + 1)
        for dy in range(-self.view, self.view + 1):
            for dx in range(-self.view, self.view + 1):
                y, x = self.agent + (dy, dx)
                if 0 <= y < self.size and 0 <= x < self.size:
                    color = (90, 60, 40) if self.walls[y, x] else (200, 200, 200)
                    if (y, x) == tuple(self.key) and not self.has_key:
                        color = (255, 220, 0)
                    if (y, x) == tuple(self.door):
                        color = (0, 160, 0)
                    top, left = (dy + self.view) * cell, (dx + self.view) * cell
                    frame[top : top + cell, left : left + cell] = color
        return frame


class TellingBuffer(RecurrentRolloutBuffer):
    def _get_samples(self, *args, **kwargs):
        samples = super()._get_samples(*args, **kwargs)
        tell(inputs=list(samples))
        return samples


class IteratedPPO(RecurrentPPO):
    def train(self):
        super().train()
        end_of_step(inputs=self._last_lstm_states)


env = VecFrameStack(make_vec_env(DarkMaze, n_envs=4, seed=1), n_stack=2)
model = IteratedPPO(
    "CnnLstmPolicy",
    env,
    learning_rate=lambda remaining: 2.5e-4 * remaining,
    n_steps=32,
    batch_size=64,
    n_epochs=2,
    gamma=0.98,
    ent_coef=0.01,
    clip_range=0.1,
    policy_kwargs={"lstm_hidden_size": 256, "enable_critic_lstm": True, "normalize_images": True},
    device="cuda",
    verbose=0,
    seed=1,
)
model.rollout_buffer.__class__ = TellingBuffer
model.policy.optimizer.register_step_post_hook(
    lambda optimizer, args, kwargs: tell(gradients=[p.grad for p in model.policy.parameters()])
)
model.learn(total_timesteps=32 * 4 * 5)
model.save("keys_in_the_dark")
