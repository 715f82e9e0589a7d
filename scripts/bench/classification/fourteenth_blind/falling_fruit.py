"""A player learns to catch falling fruit from stacked frames by PPO of Stable-Baselines3: NatureCNN, four environments, rates and clipping that fade, a checkpoint now and then."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from programs import end_of_step, tell
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

SIZE = 84


class FallingFruit(gym.Env):
    """A paddle at the bottom; fruit falls from the top, a reward for each that is caught."""

    metadata = {"render_modes": []}

    def __init__(self, lives=3):
        self.observation_space = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
        self.action_space = spaces.Discrete(3)
        self.all_lives = lives

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.paddle, self.lives = SIZE // 2, self.all_lives
        self._drop()
        return self._picture(), {}

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + 4 * (int(action) - 1), 6, SIZE - 7))
        self.height += 3
        reward = 0.0
        if self.height >= SIZE - 6:
            caught = abs(self.fruit - self.paddle) <= 8
            reward = 1.0 if caught else -1.0
            self.lives -= not caught
            self._drop()
        return self._picture(), reward, self.lives == 0, False, {}

    def _drop(self):
        self.fruit, self.height = int(self.np_random.integers(4, SIZE - 4)), 2

    def _picture(self):
        picture = np.zeros((SIZE, SIZE, 1), np.uint8)
        picture[-4:, self.paddle - 6 : self.paddle + 7] = 255
        picture[self.height - 2 : self.height + 3, self.fruit - 2 : self.fruit + 3] = 180
        return picture


class Rollouts(RolloutBuffer):
    def _get_samples(self, batch_inds, env=None):
        samples = super()._get_samples(batch_inds, env)
        tell(inputs=samples)
        return samples


class EndOfIteration(BaseCallback):
    def _on_rollout_start(self):
        if self.num_timesteps:
            end_of_step()

    def _on_step(self):
        return True


def linear(start):
    return lambda remaining: remaining * start


def main():
    env = VecFrameStack(make_vec_env(FallingFruit, n_envs=4, seed=1), n_stack=4)
    model = PPO(
        "CnnPolicy",
        env,
        n_steps=64,
        batch_size=128,
        n_epochs=2,
        learning_rate=linear(2.5e-4),
        clip_range=linear(0.1),
        ent_coef=0.01,
        vf_coef=0.5,
        gae_lambda=0.95,
        max_grad_norm=0.5,
        policy_kwargs={"features_extractor_kwargs": {"features_dim": 512}, "net_arch": [256]},
        rollout_buffer_class=Rollouts,
        device="cuda",
        seed=1,
        verbose=0,
    )
    callbacks = CallbackList([CheckpointCallback(save_freq=100, save_path="checkpoints"), EndOfIteration()])
    model.learn(total_timesteps=4 * 64 * 5, callback=callbacks)
    model.save("falling_fruit")


if __name__ == "__main__":
    main()
