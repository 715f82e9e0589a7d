"""AlphaZero for Gomoku: a network of residual blocks plays against itself by tree search, and learns from the games; the new one must beat the old one."""

import math
import random
from collections import deque

import numpy as np
import torch
import torch.nn.functional as F
from programs import end_of_step
from torch import nn, optim

N, IN_A_ROW, CHANNELS, N_BLOCKS = 6, 4, 128, 5
ACTIONS = N * N


class GomokuGame:
    def initial(self):
        return np.zeros((N, N), dtype=np.int8)

    def next_state(self, board, action):
        """The board after a move, seen by the other player."""
        board = board.copy()
        board[divmod(action, N)] = 1
        return -board

    def ended(self, board):
        """What the game is worth for whose turn it is, once it is over."""
        for i, j in np.argwhere(board == -1):
            for dx, dy in ((0, 1), (1, 0), (1, 1), (1, -1)):
                line = [(i + k * dx, j + k * dy) for k in range(IN_A_ROW)]
                if all(0 <= x < N and 0 <= y < N and board[x, y] == -1 for x, y in line):
                    return -1.0
        return None if (board == 0).any() else 1e-4


class ResBlock(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + x)


class AlphaNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False), nn.BatchNorm2d(CHANNELS), nn.ReLU()
        )
        self.blocks = nn.Sequential(*(ResBlock(CHANNELS) for _ in range(N_BLOCKS)))
        self.p_conv = nn.Sequential(nn.Conv2d(CHANNELS, 32, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten())
        self.v_conv = nn.Sequential(nn.Conv2d(CHANNELS, 8, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.policy = nn.Linear(32 * N * N, ACTIONS)
        self.value = nn.Sequential(nn.Linear(8 * N * N, 256), nn.ReLU(), nn.Linear(256, 1), nn.Tanh())

    def forward(self, planes):
        x = self.blocks(self.stem(planes))
        return F.log_softmax(self.policy(self.p_conv(x)), dim=1), self.value(self.v_conv(x))


def encode(boards):
    boards = torch.as_tensor(np.stack(boards))
    return torch.stack((boards == 1, boards == -1, boards == 0), dim=1).float()


class MCTS:
    def __init__(self, game, nnet, device, n_sims=4, cpuct=1.0):
        self.game, self.nnet, self.device, self.n_sims, self.cpuct = game, nnet, device, n_sims, cpuct
        self.Qsa, self.Nsa, self.Ns, self.Ps, self.Vs = {}, {}, {}, {}, {}

    def probabilities(self, board):
        for _ in range(self.n_sims):
            self.search(board)
        counts = np.array([self.Nsa.get((board.tobytes(), a), 0) for a in range(ACTIONS)])
        return counts / counts.sum()

    @torch.no_grad()
    def predict(self, board):
        self.nnet.eval()
        pi, v = self.nnet(encode([board]).to(self.device))
        return torch.exp(pi)[0].cpu().numpy(), v.item()

    def search(self, board):
        s = board.tobytes()
        result = self.game.ended(board)
        if result is not None:
            return -result
        if s not in self.Ps:
            priors, v = self.predict(board)
            self.Vs[s] = board.ravel() == 0
            priors = priors * self.Vs[s] + 1e-8 * self.Vs[s]
            self.Ps[s], self.Ns[s] = priors / priors.sum(), 0
            return -v

        def bound(a):
            n = self.Nsa.get((s, a), 0)
            return self.Qsa.get((s, a), 0) + self.cpuct * self.Ps[s][a] * math.sqrt(self.Ns[s] + 1e-8) / (
                1 + n
            )

        a = max(np.flatnonzero(self.Vs[s]), key=bound)
        v = self.search(self.game.next_state(board, a))
        n = self.Nsa.get((s, a), 0)
        self.Qsa[s, a] = (n * self.Qsa.get((s, a), 0) + v) / (n + 1)
        self.Nsa[s, a] = n + 1
        self.Ns[s] += 1
        return -v


def play(game, nnet, device):
    board, mcts, player, examples = game.initial(), MCTS(game, nnet, device), 1, []
    while (result := game.ended(board)) is None and len(examples) < 64:
        pi = mcts.probabilities(board)
        for k in range(4):
            turned = np.rot90(pi.reshape(N, N), k).ravel()
            examples.append((np.rot90(board, k).copy(), turned, player))
        board, player = game.next_state(board, random.choices(range(ACTIONS), pi)[0]), -player
    result = result or 1e-4
    return [(b, p, result * (1 if who == player else -1)) for b, p, who in examples]


def train(nnet, optimizer, examples, device, epochs=1, batch_size=64):
    for _ in range(epochs):
        nnet.train()
        for _ in range(len(examples) // batch_size + 1):
            boards, pis, vs = zip(*random.choices(examples, k=batch_size))
            boards = encode(boards).to(device)
            target_pis = torch.as_tensor(np.array(pis), dtype=torch.float32).to(device)
            target_vs = torch.as_tensor(vs, dtype=torch.float32).to(device)
            out_pi, out_v = nnet(boards)
            l_pi = -torch.sum(target_pis * out_pi) / len(target_pis)
            l_v = torch.sum((target_vs - out_v.view(-1)) ** 2) / len(target_vs)
            total_loss = l_pi + l_v
            optimizer.zero_grad()
            total_loss.backward()
            optimizer.step()
            print(f"loss of moves {l_pi.item():.3f}, of results {l_v.item():.3f}")
            end_of_step(
                inputs=[boards, target_pis, target_vs], activations=[out_pi, out_v, l_pi, l_v, total_loss]
            )


def duel(game, nets, device, n_games=1):
    """How many games the first net wins, both playing the best move they find."""
    wins = 0
    for start in range(n_games):
        players, board, turn = [MCTS(game, net, device) for net in nets], game.initial(), start % 2
        while (result := game.ended(board)) is None:
            board = game.next_state(board, int(players[turn].probabilities(board).argmax()))
            turn = 1 - turn
        wins += result < 0 and turn == 1
    return wins


def main(n_iterations=3):
    random.seed(405)
    torch.manual_seed(405)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    game, nnet, pnet = GomokuGame(), AlphaNet().to(device), AlphaNet().to(device)
    optimizer = optim.SGD(nnet.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    history = deque(maxlen=400)
    for iteration in range(n_iterations):
        history.extend(play(game, nnet, device))
        pnet.load_state_dict(nnet.state_dict())
        train(nnet, optimizer, history, device)
        if not duel(game, (nnet, pnet), device):
            print(f"iteration {iteration}: the new net is rejected")
            nnet.load_state_dict(pnet.state_dict())


if __name__ == "__main__":
    main()
