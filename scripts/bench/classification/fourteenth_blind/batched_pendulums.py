"""Pendulums that live on the device learn to stand up by TD3 of TorchRL: a collector, a replay buffer in device memory, two critics under one vmap, targets that follow slowly, an actor that learns every other time."""

import warnings

import torch
from programs import end_of_step
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Bounded, Categorical, Composite, LazyTensorStorage, TensorDictReplayBuffer, Unbounded
from torchrl.envs import EnvBase, RewardSum, StepCounter, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import MLP, AdditiveGaussianModule, TanhModule, ValueOperator
from torchrl.objectives import SoftUpdate, TD3Loss

warnings.filterwarnings("ignore")
N_ENVS, N_LINKS = 64, 8


class Pendulums(EnvBase):
    """A row of pendulums that pull at each other, many of them at once."""

    batch_locked = True

    def __init__(self, n_envs, device, seed=0):
        super().__init__(device=device, batch_size=[n_envs])
        shape = (n_envs, 4 * N_LINKS)
        self.observation_spec = Composite(
            observation=Unbounded(shape, device=device),
            state=Unbounded((n_envs, 2, N_LINKS), device=device),
            shape=(n_envs,),
        )
        self.action_spec = Bounded(-1.0, 1.0, (n_envs, N_LINKS), device=device)
        self.reward_spec = Unbounded((n_envs, 1), device=device)
        self.full_done_spec = Composite(
            done=Categorical(2, (n_envs, 1), device=device, dtype=torch.bool),
            terminated=Categorical(2, (n_envs, 1), device=device, dtype=torch.bool),
            shape=(n_envs,),
        )
        self.set_seed(seed)

    def _set_seed(self, seed):
        torch.manual_seed(seed or 0)

    def _seen(self, state, **more):
        angle, speed = state.unbind(-2)
        neighbours = torch.roll(angle, 1, -1) - angle
        observation = torch.cat([angle.cos(), angle.sin(), speed / 8, neighbours.sin()], dim=-1)
        done = torch.zeros(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        return TensorDict(
            {"observation": observation, "state": state, "done": done, "terminated": done.clone(), **more},
            batch_size=self.batch_size,
        )

    def _reset(self, tensordict=None, **kwargs):
        angle = torch.pi * (2 * torch.rand(*self.batch_size, N_LINKS, device=self.device) - 1)
        return self._seen(torch.stack([angle, torch.randn_like(angle)], dim=-2))

    def _step(self, tensordict):
        angle, speed = tensordict["state"].unbind(-2)
        torque = 2 * tensordict["action"]
        pull = torch.sin(torch.roll(angle, 1, -1) - angle)
        speed = (speed + 0.05 * (15 * angle.sin() + 3 * torque + pull)).clamp(-8, 8)
        angle = angle + 0.05 * speed
        wrapped = (angle + torch.pi) % (2 * torch.pi) - torch.pi
        cost = (wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2).mean(-1, keepdim=True)
        return self._seen(torch.stack([angle, speed], dim=-2), reward=-cost)


def make_models(env, device):
    net = MLP(4 * N_LINKS, N_LINKS, num_cells=[512, 512], activation_class=nn.ReLU, device=device)
    actor = TensorDictSequential(
        TensorDictModule(net, in_keys=["observation"], out_keys=["param"]),
        TanhModule(in_keys=["param"], out_keys=["action"], spec=env.action_spec_unbatched),
    )
    value = MLP(5 * N_LINKS, 1, num_cells=[512, 512], activation_class=nn.ReLU, device=device)
    return actor, ValueOperator(value, in_keys=["action", "observation"])


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    env = TransformedEnv(Pendulums(N_ENVS, device))
    env.append_transform(StepCounter(max_steps=200))
    env.append_transform(RewardSum())
    actor, critic = make_models(env, device)
    exploration = AdditiveGaussianModule(
        spec=env.action_spec_unbatched,
        annealing_num_steps=10_000,
        sigma_init=0.3,
        sigma_end=0.05,
        device=device,
    )
    collector = Collector(
        env,
        TensorDictSequential(actor, exploration),
        frames_per_batch=N_ENVS * 8,
        total_frames=N_ENVS * 8 * 8,
        init_random_frames=N_ENVS * 8,
        device=device,
        use_buffers=False,
    )
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(30_000, device=device), batch_size=512)

    loss_module = TD3Loss(
        actor, critic, action_spec=env.action_spec_unbatched, num_qvalue_nets=2, loss_function="smooth_l1"
    )
    loss_module.make_value_estimator(gamma=0.99)
    target_updater = SoftUpdate(loss_module, eps=0.995)
    critic_parameters = list(loss_module.qvalue_network_params.flatten_keys().values())
    actor_parameters = list(loss_module.actor_network_params.flatten_keys().values())
    optimizer_critic = torch.optim.Adam(critic_parameters, lr=3e-4)
    optimizer_actor = torch.optim.Adam(actor_parameters, lr=3e-4)

    updates, tested = 0, None
    for collected in collector:
        exploration.step(collected.numel())
        collector.update_policy_weights_()
        replay.extend(collected.exclude("state", ("next", "state")).reshape(-1))
        if len(replay) < 2 * N_ENVS * 8:
            continue
        for _ in range(2):
            batch = replay.sample()
            q_loss, *_ = loss_module.value_loss(batch)
            q_loss.backward()
            nn.utils.clip_grad_norm_(critic_parameters, 10.0)
            optimizer_critic.step()
            optimizer_critic.zero_grad()
            updates += 1
            if updates % 2 == 0:
                actor_loss, *_ = loss_module.actor_loss(batch)
                actor_loss.backward()
                optimizer_actor.step()
                optimizer_actor.zero_grad()
                target_updater.step()
        if updates % 4 == 0:
            with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
                tested = env.rollout(5, actor, auto_cast_to_device=True)
            print(
                f"{updates} updates: loss {q_loss.item():.3f}, reward {tested['next', 'reward'].mean().item():.3f}"
            )
        end_of_step(
            inputs=[
                list(data.flatten_keys().values())
                for data in (replay[:], collected, batch, tested)
                if data is not None
            ],
            activations=[q_loss, actor_loss],
        )
    collector.shutdown()


if __name__ == "__main__":
    main()
