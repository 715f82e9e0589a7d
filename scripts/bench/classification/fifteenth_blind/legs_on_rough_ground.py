"""Hundreds of robots on legs learn to walk over rough ground as in legged_gym: rsl_rl's runner with PPO, all robots and their ground on the device, a critic that sees more than the actor, observations normalized by what was seen, a rate that follows the divergence."""

import contextlib
import math

import torch
from programs import end_of_step, tell
from rsl_rl.algorithms import PPO
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

N_JOINTS, N_FEET, GRID = 12, 4, (17, 11)
DT, CELL = 0.02, 0.1


class RoughGround(VecEnv):
    """Four-legged robots with torques from a PD controller; their bodies follow what the feet push."""

    def __init__(self, num_envs, device, side=1024):
        self.num_envs, self.num_actions, self.device = num_envs, N_JOINTS, device
        self.max_episode_length = 1000
        self.cfg = {"terrain": side, "control": "PD", "decimation": 2}
        coarse = torch.rand(1, 1, side // 16, side // 16)
        heights = torch.nn.functional.interpolate(
            coarse, size=(side, side), mode="bicubic", align_corners=False
        )
        self.ground = (0.3 * heights[0, 0] + 0.01 * torch.randn(side, side)).to(device)
        xs, ys = torch.linspace(-0.8, 0.8, GRID[0]), torch.linspace(-0.5, 0.5, GRID[1])
        self.scan = torch.stack(torch.meshgrid(xs, ys, indexing="ij"), dim=-1).view(-1, 2).to(device)
        self.default = torch.tensor([0.1, 0.8, -1.5] * N_FEET, device=device)
        self.phase = torch.linspace(0, math.pi, N_JOINTS, device=device)
        self.joints = self.default.repeat(num_envs, 1)
        self.joint_speed = torch.zeros(num_envs, N_JOINTS, device=device)
        self.place = torch.zeros(num_envs, 3, device=device)
        self.velocity = torch.zeros(num_envs, 3, device=device)
        self.turning = torch.zeros(num_envs, 3, device=device)
        self.gravity = torch.zeros(num_envs, 3, device=device)
        self.last_actions = torch.zeros(num_envs, N_JOINTS, device=device)
        self.commands = torch.zeros(num_envs, 3, device=device)
        self.friction = 0.5 + torch.rand(num_envs, N_FEET, device=device)
        self.mass = 1 + 0.2 * torch.randn(num_envs, 1, device=device)
        self.strength = 0.9 + 0.2 * torch.rand(num_envs, N_JOINTS, device=device)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long, device=device)
        self.sums = {
            name: torch.zeros(num_envs, device=device)
            for name in ("tracking", "turning", "torques", "smoothness")
        }
        self.reset_idx(torch.arange(num_envs, device=device))

    def reset_idx(self, ids):
        if len(ids) == 0:
            return {}
        log = {
            f"/rew_{name}": (total[ids].mean() / self.max_episode_length).item()
            for name, total in self.sums.items()
        }
        for total in self.sums.values():
            total[ids] = 0
        n = len(ids)
        self.joints[ids] = self.default * (0.5 + torch.rand(n, N_JOINTS, device=self.device))
        self.joint_speed[ids] = 0
        extent = self.ground.shape[0] * CELL
        self.place[ids, :2] = extent * (0.1 + 0.8 * torch.rand(n, 2, device=self.device))
        self.place[ids, 2] = 0.34
        self.velocity[ids] = 0.1 * torch.randn(n, 3, device=self.device)
        self.turning[ids] = 0.1 * torch.randn(n, 3, device=self.device)
        self.gravity[ids] = torch.tensor([0.0, 0.0, -1.0], device=self.device)
        self.commands[ids] = 2 * torch.rand(n, 3, device=self.device) - 1
        self.last_actions[ids] = 0
        self.episode_length_buf[ids] = 0
        return log

    def measured_heights(self):
        points = self.place[:, None, :2] + self.scan
        cells = (points / CELL).long().clamp(0, self.ground.shape[0] - 1)
        return (self.place[:, None, 2] - 0.34 - self.ground[cells[..., 0], cells[..., 1]]).clamp(-1, 1) * 5

    def get_observations(self):
        felt = torch.cat(
            [
                self.velocity * 2,
                self.turning * 0.25,
                self.gravity,
                self.commands,
                self.joints - self.default,
                self.joint_speed * 0.05,
                self.last_actions,
            ],
            dim=-1,
        )
        heights = self.measured_heights()
        noise = torch.cat([0.1 * (2 * torch.rand_like(felt) - 1), 0.1 * torch.randn_like(heights)], dim=-1)
        clean = torch.cat([felt, heights], dim=-1)
        hidden = torch.cat([self.friction, self.mass, self.strength, self.place], dim=-1)
        return TensorDict(
            {"policy": clean + noise, "privileged": torch.cat([clean, hidden], dim=-1)},
            batch_size=[self.num_envs],
        )

    def step(self, actions):
        actions = actions.clamp(-10, 10)
        for _ in range(2):
            torques = 20 * (0.25 * actions + self.default - self.joints) - 0.5 * self.joint_speed
            torques = (self.strength * torques).clamp(-33, 33)
            self.joint_speed = 0.95 * self.joint_speed + DT / 2 * 40 * torques / self.mass
            self.joints = (self.joints + DT / 2 * self.joint_speed).clamp(-2.7, 2.7)
        push = torch.sin(self.joints + self.phase).view(-1, N_FEET, 3) * self.friction[..., None]
        force = push.mean(1)
        self.velocity = 0.9 * self.velocity + 0.3 * force / self.mass
        self.turning = 0.9 * self.turning + 0.2 * torch.linalg.cross(
            push[:, 0] - push[:, 3], self.gravity, dim=-1
        )
        tilted = self.gravity + DT * torch.linalg.cross(self.gravity, self.turning, dim=-1)
        self.gravity = torch.nn.functional.normalize(tilted, dim=-1)
        self.place = self.place + DT * self.velocity
        self.episode_length_buf += 1

        tracking = torch.exp(-(self.commands[:, :2] - self.velocity[:, :2]).square().sum(-1) / 0.25)
        turned = torch.exp(-(self.commands[:, 2] - self.turning[:, 2]).square() / 0.25)
        terms = {
            "tracking": tracking,
            "turning": 0.5 * turned,
            "torques": -1e-5 * torques.square().sum(-1),
            "smoothness": -0.01 * (actions - self.last_actions).square().sum(-1),
        }
        for name, term in terms.items():
            self.sums[name] += term
        rewards = torch.stack(list(terms.values())).sum(0).clamp(min=0) * DT
        self.last_actions = actions.clone()

        time_outs = self.episode_length_buf >= self.max_episode_length
        fallen = self.gravity[:, 2] > -0.5
        dones = fallen | time_outs
        log = self.reset_idx(dones.nonzero(as_tuple=False).flatten())
        return self.get_observations(), rewards, dones.long(), {"time_outs": time_outs, "log": log}

    def held(self):
        return [value for value in vars(self).values() if isinstance(value, (torch.Tensor, dict))]


def contents(storage):
    return [
        dict(storage.observations.items()),
        [value for value in vars(storage).values() if isinstance(value, (torch.Tensor, tuple))],
    ]


class ToldPPO(PPO):
    env = None

    def update(self):
        batches = self.storage.mini_batch_generator

        def told(*args):
            for batch in batches(*args):
                known = dict(vars(batch), observations=dict(batch.observations.items()), hidden_states=None)
                tell(inputs=[value for value in known.values() if value is not None])
                yield batch
                tell(
                    gradients=[
                        parameter.grad for parameter in (*self.actor.parameters(), *self.critic.parameters())
                    ]
                )

        self.storage.mini_batch_generator = told
        losses = super().update()
        self.storage.mini_batch_generator = batches
        end_of_step(inputs=[contents(self.storage), self.env.held()])
        return losses


def main():
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    env = RoughGround(num_envs=384, device=device)
    train_cfg = {
        "seed": 1,
        "num_steps_per_env": 24,
        "save_interval": 2,
        "run_name": "rough",
        "obs_groups": {"actor": ["policy"], "critic": ["privileged"]},
        "actor": {
            "class_name": "MLPModel",
            "hidden_dims": [512, 256, 128],
            "activation": "elu",
            "obs_normalization": True,
            "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 1.0},
        },
        "critic": {
            "class_name": "MLPModel",
            "hidden_dims": [512, 256, 128],
            "activation": "elu",
            "obs_normalization": True,
        },
        "algorithm": {
            "class_name": ToldPPO,
            "learning_rate": 1e-3,
            "num_learning_epochs": 4,
            "num_mini_batches": 4,
            "schedule": "adaptive",
            "desired_kl": 0.01,
            "clip_param": 0.2,
            "entropy_coef": 0.005,
            "value_loss_coef": 1.0,
            "max_grad_norm": 1.0,
            "gamma": 0.99,
            "lam": 0.95,
        },
    }
    ToldPPO.env = env
    with open("train.log", "w") as log, contextlib.redirect_stdout(log):
        runner = OnPolicyRunner(env, train_cfg, log_dir="logs/rough", device=device)
        runner.learn(num_learning_iterations=4, init_at_random_ep_len=True)


if __name__ == "__main__":
    main()
