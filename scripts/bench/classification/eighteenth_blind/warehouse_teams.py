"""QMIX teaches a team of warehouse robots to fetch parcels together: TorchRL's collector, replay buffer on the device, mixing network, target networks, clipped Adam."""

import torch
from programs import end_of_step, tell
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import Categorical, Composite, LazyTensorStorage, TensorDictReplayBuffer, Unbounded
from torchrl.data.replay_buffers.samplers import SamplerWithoutReplacement
from torchrl.envs import EnvBase, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import EGreedyModule, QValueModule, SafeSequential
from torchrl.modules.models.multiagent import MultiAgentMLP, QMixer
from torchrl.objectives import SoftUpdate, ValueEstimators
from torchrl.objectives.multiagent.qmixer import QMixerLoss

device = torch.device("cuda")
torch.manual_seed(0)

MOVES = torch.tensor([[0, 0], [0, 1], [0, -1], [1, 0], [-1, 0]])


class Warehouse(EnvBase):
    """Robots on a square floor; each sees the places of all robots and parcels relative to itself and a local map."""

    def __init__(self, num_envs, n_agents=5, n_parcels=5, size=14, view=7, device="cuda"):
        super().__init__(device=device, batch_size=[num_envs])
        self.n_agents, self.n_parcels, self.size, self.view = n_agents, n_parcels, size, view
        self.moves = MOVES.to(device)
        shape = (num_envs, n_agents)
        width = 2 * n_agents + 3 * n_parcels + 2 * view * view
        self.observation_spec = Composite(
            agents=Composite(
                observation=Unbounded((width,), device=device).expand(*shape, width),
                shape=shape,
                device=device,
            ),
            shape=(num_envs,),
            device=device,
        )
        self.action_spec = Composite(
            agents=Composite(action=Categorical(5, shape=shape, device=device), shape=shape, device=device),
            shape=(num_envs,),
            device=device,
        )
        self.reward_spec = Composite(
            agents=Composite(reward=Unbounded((*shape, 1), device=device), shape=shape, device=device),
            shape=(num_envs,),
            device=device,
        )
        self.done_spec = Composite(
            done=Categorical(2, shape=(num_envs, 1), dtype=torch.bool, device=device),
            terminated=Categorical(2, shape=(num_envs, 1), dtype=torch.bool, device=device),
            shape=(num_envs,),
            device=device,
        )

    def _set_seed(self, seed):
        torch.manual_seed(seed)

    def _observe(self):
        relative = (self.robots[:, None] - self.robots[:, :, None]).flatten(2)
        parcels = self.parcels[:, None] - self.robots[:, :, None]
        left = self.left[:, None, :, None].expand(-1, self.n_agents, -1, 1).float()
        parcels = torch.cat([parcels / self.size, left], -1).flatten(2)
        half = self.view // 2
        maps = torch.zeros(
            *self.batch_size, 2, self.size + 2 * half, self.size + 2 * half, device=self.device
        )
        env = torch.arange(self.batch_size[0], device=self.device)[:, None]
        maps[env, 0, self.robots[..., 0] + half, self.robots[..., 1] + half] = 1.0
        maps[env, 1, self.parcels[..., 0] + half, self.parcels[..., 1] + half] = self.left.float()
        windows = maps.unfold(2, self.view, 1).unfold(3, self.view, 1)
        local = windows[env, :, self.robots[..., 0], self.robots[..., 1]].flatten(2)
        return torch.cat([relative / self.size, parcels, local], -1)

    def _reset(self, tensordict=None, **kwargs):
        if tensordict is not None and "_reset" in tensordict.keys():  # noqa: SIM118
            again = tensordict["_reset"].view(-1)
        else:
            again = torch.ones(self.batch_size, dtype=torch.bool, device=self.device)
        robots = torch.randint(0, self.size, (*self.batch_size, self.n_agents, 2), device=self.device)
        parcels = torch.randint(0, self.size, (*self.batch_size, self.n_parcels, 2), device=self.device)
        left = torch.ones(*self.batch_size, self.n_parcels, dtype=torch.bool, device=self.device)
        if not hasattr(self, "robots"):
            self.robots, self.parcels, self.left = robots, parcels, left
        else:
            self.robots = torch.where(again[:, None, None], robots, self.robots)
            self.parcels = torch.where(again[:, None, None], parcels, self.parcels)
            self.left = torch.where(again[:, None], left, self.left)
        agents = TensorDict(
            {"observation": self._observe()}, batch_size=(*self.batch_size, self.n_agents), device=self.device
        )
        done = torch.zeros(*self.batch_size, 1, dtype=torch.bool, device=self.device)
        return TensorDict(
            {"agents": agents, "done": done, "terminated": done.clone()},
            batch_size=self.batch_size,
            device=self.device,
        )

    def _step(self, tensordict):
        action = tensordict["agents", "action"]
        self.robots = (self.robots + self.moves[action]).clamp(0, self.size - 1)
        distance = (self.robots[:, :, None] - self.parcels[:, None]).abs().sum(-1)
        fetched = (distance == 0).any(1) & self.left
        self.left = self.left & ~fetched
        nearest = distance.float().masked_fill(~self.left[:, None], 2.0 * self.size).amin(2)
        reward = fetched.sum(1, keepdim=True).float() - 0.01 * nearest / self.size
        agents = TensorDict(
            {"observation": self._observe(), "reward": reward.unsqueeze(-1)},
            batch_size=(*self.batch_size, self.n_agents),
            device=self.device,
        )
        done = ~self.left.any(1, keepdim=True)
        return TensorDict(
            {"agents": agents, "done": done, "terminated": done.clone()},
            batch_size=self.batch_size,
            device=self.device,
        )


NUM_ENVS, MAX_STEPS, ITERATIONS, MINIBATCH, EPOCHS = 64, 20, 10, 640, 2
FRAMES = NUM_ENVS * MAX_STEPS

env = TransformedEnv(Warehouse(NUM_ENVS, device=device))
env.append_transform(RewardSum(in_keys=[env.reward_key], out_keys=[("agents", "episode_reward")]))
env.append_transform(StepCounter(max_steps=MAX_STEPS))
n_agents = env.base_env.n_agents
observed = env.observation_spec["agents", "observation"].shape[-1]

net = MultiAgentMLP(
    n_agent_inputs=observed,
    n_agent_outputs=5,
    n_agents=n_agents,
    centralised=False,
    share_params=True,
    device=device,
    depth=2,
    num_cells=256,
    activation_class=nn.Tanh,
)
module = TensorDictModule(net, in_keys=[("agents", "observation")], out_keys=[("agents", "action_value")])
value_module = QValueModule(
    action_value_key=("agents", "action_value"),
    out_keys=[env.action_key, ("agents", "action_value"), ("agents", "chosen_action_value")],
    spec=env.full_action_spec_unbatched,
    action_space=None,
)
qnet = SafeSequential(module, value_module)
qnet_explore = TensorDictSequential(
    qnet,
    EGreedyModule(
        eps_init=0.3,
        eps_end=0,
        annealing_num_steps=FRAMES * ITERATIONS // 2,
        action_key=env.action_key,
        spec=env.full_action_spec_unbatched,
    ).to(device),
)
mixer = TensorDictModule(
    QMixer(state_shape=(n_agents, observed), mixing_embed_dim=32, n_agents=n_agents, device=device),
    in_keys=[("agents", "chosen_action_value"), ("agents", "observation")],
    out_keys=["chosen_action_value"],
)
collector = Collector(
    env,
    qnet_explore,
    device=device,
    storing_device=device,
    frames_per_batch=FRAMES,
    total_frames=FRAMES * ITERATIONS,
)
replay_buffer = TensorDictReplayBuffer(
    storage=LazyTensorStorage(8 * FRAMES, device=device),
    sampler=SamplerWithoutReplacement(),
    batch_size=MINIBATCH,
)
loss_module = QMixerLoss(qnet, mixer, delay_value=True)
loss_module.set_keys(
    action_value=("agents", "action_value"),
    local_value=("agents", "chosen_action_value"),
    global_value="chosen_action_value",
    action=env.action_key,
)
loss_module.make_value_estimator(ValueEstimators.TD0, gamma=0.99)
target_updater = SoftUpdate(loss_module, eps=1 - 0.005)
optimizer = torch.optim.Adam(loss_module.parameters(), 5e-4)


def tensors(tensordict):
    return list(tensordict.values(include_nested=True, leaves_only=True))


def bounds(env):
    """The limits of the observations, which the specs keep on the device."""
    stages = [env, env.base_env, *(transform.parent for transform in env.transform)]
    limits = []
    for stage in stages:
        for spec in (stage.output_spec, stage.input_spec):
            spaces = [leaf.space for leaf in spec.values(include_nested=True, leaves_only=True)]
            limits += [
                limit for space in spaces if hasattr(space, "low") for limit in (space.low, space.high)
            ]
    return limits


for iteration, rollout in enumerate(collector):
    rollout.set(("next", "reward"), rollout.get(("next", env.reward_key)).mean(-2))
    del rollout["next", env.reward_key]
    rollout.set(("next", "episode_reward"), rollout.get(("next", "agents", "episode_reward")).mean(-2))
    del rollout["next", "agents", "episode_reward"]
    replay_buffer.extend(rollout.reshape(-1))

    losses = []
    for _ in range(EPOCHS):
        for _ in range(FRAMES // MINIBATCH):
            batch = replay_buffer.sample()
            tell(inputs=tensors(batch))
            loss = loss_module(batch)["loss"]
            losses.append(loss.detach())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(loss_module.parameters(), 40.0)
            tell(gradients=[p.grad for p in loss_module.parameters() if p.grad is not None])
            optimizer.step()
            optimizer.zero_grad()
            target_updater.step()

    qnet_explore[1].step(frames=rollout.numel())
    collector.update_policy_weights_()
    done = rollout["next", "done"]
    reward = rollout["next", "episode_reward"][done].mean().item()
    print(f"iteration {iteration} loss {torch.stack(losses).mean().item():.4f} episode reward {reward:.3f}")
    end_of_step(
        inputs=[
            tensors(rollout),
            tensors(replay_buffer[:]),
            tensors(collector._final_rollout),
            bounds(collector.env),
        ],
        activations=[loss],
    )
collector.shutdown()
