"""A hopping robot is controlled by Diffuser: trajectories are denoised by a temporal U-Net and guided by the gradient of a value function, one plan per control step."""

import gymnasium as gym
import numpy as np
import torch
from diffusers import DDPMScheduler, UNet1DModel
from diffusers.experimental import ValueGuidedRLPipeline
from programs import end_of_step


class Hopper(gym.Env):
    """A plain hopper: a spring-loaded leg with three motors, and logged transitions of earlier policies."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (11,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.np_random.normal(scale=0.05, size=11).astype(np.float32)
        self.state[0] += 1.25
        return self.state, {}

    def step(self, action):
        action = np.clip(action, -1, 1)
        position, speed = self.state[:5].copy(), self.state[5:].copy()
        speed[0] += 0.02 * (1.0 + action[0] - 0.2 * speed[0])
        speed[1] += 0.02 * (12.0 * max(0.0, 1.2 - position[0]) - 9.81 * (position[0] > 1.2))
        speed[3:] += 0.05 * action - 0.02 * speed[3:]
        position[0] += 0.02 * speed[1]
        position[1:] += 0.02 * speed[2:]
        self.state = np.concatenate([position, speed]).astype(np.float32)
        fallen = bool(abs(position[1]) > 0.4 or position[0] < 0.5)
        return self.state, float(speed[0] + 1.0 - 1e-3 * np.square(action).sum()), fallen, False, {}

    def get_dataset(self, length=20000):
        rng = np.random.default_rng(5)
        return {
            "observations": rng.normal(size=(length, 11)).astype(np.float32),
            "actions": rng.uniform(-1, 1, size=(length, 3)).astype(np.float32),
            "rewards": rng.normal(1.0, 0.5, size=length).astype(np.float32),
            "terminals": rng.random(length) < 0.002,
        }


CONFIG = {
    "n_samples": 64,
    "horizon": 32,
    "num_inference_steps": 8,
    "n_guide_steps": 1,
    "scale": 0.1,
}

common = {
    "in_channels": 14,
    "out_channels": 14,
    "layers_per_block": 1,
    "use_timestep_embedding": True,
    "time_embedding_type": "positional",
    "flip_sin_to_cos": False,
    "freq_shift": 1,
    "norm_num_groups": 8,
    "act_fn": "mish",
    "block_out_channels": (32, 64, 128, 256),
    "down_block_types": ("DownResnetBlock1D",) * 4,
}


def main():
    torch.manual_seed(0)
    env = Hopper()
    unet = UNet1DModel(
        up_block_types=("UpResnetBlock1D",) * 3,
        mid_block_type="MidResTemporalBlock1D",
        out_block_type="OutConv1DBlock",
        downsample_each_block=False,
        **common,
    )
    value_function = UNet1DModel(
        up_block_types=(),
        mid_block_type="ValueFunctionMidBlock1D",
        out_block_type="ValueFunction",
        downsample_each_block=True,
        **common,
    )
    scheduler = DDPMScheduler(
        num_train_timesteps=100,
        beta_schedule="squaredcos_cap_v2",
        clip_sample=False,
        variance_type="fixed_small_log",
        prediction_type="sample",
    )
    scheduler.set_timesteps(CONFIG["num_inference_steps"])
    unet, value_function = unet.to("cuda").eval(), value_function.to("cuda").eval()
    pipeline = ValueGuidedRLPipeline(value_function=value_function, unet=unet, scheduler=scheduler, env=env)

    obs, _ = env.reset(seed=0)
    total = 0.0
    for t in range(100):
        with torch.no_grad():
            action = pipeline(
                obs,
                batch_size=CONFIG["n_samples"],
                planning_horizon=CONFIG["horizon"],
                n_guide_steps=CONFIG["n_guide_steps"],
                scale=CONFIG["scale"],
            )
        obs, reward, terminal, truncated, _ = env.step(action)
        total += reward
        print(f"step {t} reward {reward:.3f} total {total:.3f}")
        end_of_step()
        if terminal or truncated:
            obs, _ = env.reset()


if __name__ == "__main__":
    main()
