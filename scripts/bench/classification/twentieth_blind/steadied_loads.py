"""TQC of sb3-contrib learns to swing a crane's load to its place without oscillations: truncated quantile critics, AdamW, a falling rate, automatic entropy."""

import gymnasium as gym
import numpy as np
import torch
from programs import end_of_step, tell
from sb3_contrib import TQC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

torch.manual_seed(4)


class Crane(gym.Env):
    """A trolley on a rail with a load on a rope whose length can be changed."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (8,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = np.array(
            [self.np_random.uniform(-3, 3), 0, self.np_random.uniform(-0.2, 0.2), 0, 4.0, 0]
        )
        self.target = self.np_random.uniform([-3, 2], [3, 6])
        self.t = 0
        return self._observation(), {}

    def _observation(self):
        return np.concatenate([self.state, self.target]).astype(np.float32)

    def step(self, action):
        x, v, angle, omega, length, hoist = self.state
        a = 2.0 * float(action[0])
        for _ in range(4):
            alpha = -(9.81 * np.sin(angle) + a * np.cos(angle) + 2 * hoist * omega) / length
            omega += 0.0125 * alpha
            angle += 0.0125 * omega
            v += 0.0125 * a
            x += 0.0125 * v
            hoist = 0.5 * float(action[1])
            length = float(np.clip(length + 0.0125 * hoist, 1.0, 8.0))
        self.state = np.array([x, v, angle, omega, length, hoist])
        self.t += 1
        load = np.array([x + length * np.sin(angle), length * np.cos(angle)])
        reward = -np.square(load - self.target).sum() - 0.1 * omega**2 - 0.01 * np.square(action).sum()
        return self._observation(), float(reward), bool(abs(x) > 6), self.t >= 200, {}


class Buffer(ReplayBuffer):
    def sample(self, batch_size, env=None):
        samples = super().sample(batch_size, env)
        tell(inputs=[t for t in samples if isinstance(t, torch.Tensor)])
        return samples


class CraneTQC(TQC):
    def train(self, gradient_steps, batch_size=64):
        super().train(gradient_steps, batch_size)
        end_of_step()


class Progress(BaseCallback):
    def _on_step(self):
        if self.n_calls % 100 == 0 and self.model.ep_info_buffer:
            print(np.mean([e["r"] for e in self.model.ep_info_buffer]))
        return True


env = make_vec_env(Crane, n_envs=4)
model = CraneTQC(
    "MlpPolicy",
    env,
    learning_rate=lambda left: 3e-4 * left,
    buffer_size=20_000,
    replay_buffer_class=Buffer,
    learning_starts=1000,
    batch_size=512,
    tau=0.005,
    gamma=0.98,
    train_freq=1,
    gradient_steps=1,
    top_quantiles_to_drop_per_net=5,
    ent_coef="auto",
    policy_kwargs=dict(
        net_arch=dict(pi=[400, 300], qf=[512, 512, 512]),
        n_critics=5,
        n_quantiles=25,
        optimizer_class=torch.optim.AdamW,
        optimizer_kwargs=dict(weight_decay=1e-4),
    ),
    device="cuda",
    seed=4,
)
model.learn(1200, callback=Progress())
