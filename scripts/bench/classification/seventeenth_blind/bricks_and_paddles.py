"""Quantile-regression DQN learns an arcade game from pixels with sb3-contrib: NatureCNN, a replay buffer, centered RMSprop."""

import gymnasium as gym
import numpy as np
import torch
from programs import end_of_step, tell
from sb3_contrib import QRDQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack


class Paddle(gym.Env):
    """A ball falls, a paddle at the bottom has to be under it."""

    observation_space = gym.spaces.Box(0, 255, (84, 84, 1), np.uint8)
    action_space = gym.spaces.Discrete(4)

    def frame(self):
        picture = np.zeros((84, 84, 1), np.uint8)
        picture[int(self.ball[1]) : int(self.ball[1]) + 4, int(self.ball[0]) : int(self.ball[0]) + 4] = 255
        picture[80:84, self.paddle : self.paddle + 12] = 160
        return picture

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.ball = [float(self.np_random.integers(0, 80)), 0.0]
        self.paddle = 36
        return self.frame(), {}

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + (0, 0, -5, 5)[int(action)], 0, 72))
        self.ball[1] += 3.0
        done = self.ball[1] >= 78
        reward = float(done and self.paddle - 4 <= self.ball[0] <= self.paddle + 12)
        return self.frame(), reward, done, False, {}


class RecordedBuffer(ReplayBuffer):
    def sample(self, batch_size, env=None):
        samples = super().sample(batch_size, env=env)
        tell(inputs=[part for part in samples if torch.is_tensor(part)])
        return samples


class RecordedQRDQN(QRDQN):
    def train(self, gradient_steps, batch_size=100):
        super().train(gradient_steps, batch_size)
        end_of_step()


envs = VecFrameStack(make_vec_env(Paddle, n_envs=4, seed=3), n_stack=4)
model = RecordedQRDQN(
    "CnnPolicy",
    envs,
    learning_rate=5e-5,
    buffer_size=4000,
    learning_starts=400,
    batch_size=64,
    train_freq=4,
    gradient_steps=1,
    target_update_interval=1000,
    exploration_fraction=0.025,
    exploration_final_eps=0.01,
    max_grad_norm=10,
    policy_kwargs={
        "n_quantiles": 200,
        "optimizer_class": torch.optim.RMSprop,
        "optimizer_kwargs": {"alpha": 0.95, "eps": 1e-5, "centered": True},
    },
    replay_buffer_class=RecordedBuffer,
    device="cuda",
    seed=3,
)
model.learn(total_timesteps=600, log_interval=50)
