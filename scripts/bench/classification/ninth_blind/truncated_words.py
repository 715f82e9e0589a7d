"""An AWD-LSTM learns WikiText as it was done before transformers: one long text in columns, states are carried on, weights dropped, averaged SGD after a while."""

import argparse
import math

import torch
from programs import end_of_step
from torch import nn

parser = argparse.ArgumentParser(description="AWD-LSTM on WikiText")
parser.add_argument("--ntoken", type=int, default=10000)
parser.add_argument("--emsize", type=int, default=256)
parser.add_argument("--nhid", type=int, default=512)
parser.add_argument("--nlayers", type=int, default=3)
parser.add_argument("--lr", type=float, default=30)
parser.add_argument("--clip", type=float, default=0.25)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--sgd_epochs", type=int, default=1)
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--bptt", type=int, default=24)
parser.add_argument("--dropouti", type=float, default=0.4)
parser.add_argument("--dropouth", type=float, default=0.25)
parser.add_argument("--dropout", type=float, default=0.4)
parser.add_argument("--dropoute", type=float, default=0.1)
parser.add_argument("--wdrop", type=float, default=0.5)
parser.add_argument("--alpha", type=float, default=2)
parser.add_argument("--beta", type=float, default=1)
parser.add_argument("--wdecay", type=float, default=1.2e-6)
args = parser.parse_args()

torch.manual_seed(504)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class LockedDropout(nn.Module):
    def forward(self, x, dropout):
        if not self.training or not dropout:
            return x
        m = x.new_empty(1, x.size(1), x.size(2)).bernoulli_(1 - dropout)
        return x * (m / (1 - dropout)).expand_as(x)


class WeightDrop(nn.Module):
    """One layer; its hidden-to-hidden weights are dropped anew for every sequence."""

    def __init__(self, module, wdrop, name="weight_hh_l0"):
        super().__init__()
        self.module, self.wdrop, self.name = module, wdrop, name
        w = getattr(module, name)
        delattr(module, name)
        self.register_parameter(name + "_raw", nn.Parameter(w.data))
        setattr(module, name, w.detach().clone())
        module.flatten_parameters = lambda: None

    def forward(self, *args):
        raw_w = getattr(self, self.name + "_raw")
        w = nn.functional.dropout(raw_w, p=self.wdrop) if self.training else raw_w.clone()
        setattr(self.module, self.name, w)
        return self.module(*args)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers):
        super().__init__()
        self.lockdrop = LockedDropout()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.sizes = [nhid] * (nlayers - 1) + [ninp]
        self.rnns = nn.ModuleList(
            WeightDrop(nn.LSTM(n_in, n_out), args.wdrop)
            for n_in, n_out in zip([ninp, *self.sizes], self.sizes)
        )
        self.decoder = nn.Linear(ninp, ntoken)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def embedded_dropout(self, words):
        weight = self.encoder.weight
        if self.training and args.dropoute:
            mask = weight.new_empty((weight.size(0), 1)).bernoulli_(1 - args.dropoute)
            weight = mask.expand_as(weight) * weight / (1 - args.dropoute)
        return nn.functional.embedding(words, weight)

    def forward(self, words, hidden):
        raw_output = self.lockdrop(self.embedded_dropout(words), args.dropouti)
        new_hidden = []
        for layer, rnn in enumerate(self.rnns):
            raw_output, new_h = rnn(raw_output, hidden[layer])
            new_hidden.append(new_h)
            if layer != len(self.rnns) - 1:
                raw_output = self.lockdrop(raw_output, args.dropouth)
        output = self.lockdrop(raw_output, args.dropout)
        return self.decoder(output.flatten(0, 1)), new_hidden, raw_output, output

    def init_hidden(self, bsz):
        weight = self.encoder.weight
        return [(weight.new_zeros(1, bsz, n), weight.new_zeros(1, bsz, n)) for n in self.sizes]


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data[: nbatch * bsz].view(bsz, -1).t().contiguous().to(device)


def get_batch(source, i, seq_len):
    seq_len = min(seq_len, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].reshape(-1)


train_data = batchify(torch.randint(args.ntoken, (800,)), args.batch_size)
val_data = batchify(torch.randint(args.ntoken, (240,)), 4)
model = RNNModel(args.ntoken, args.emsize, args.nhid, args.nlayers).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, weight_decay=args.wdecay)


@torch.no_grad()
def evaluate(source):
    model.eval()
    total_loss, hidden = 0.0, model.init_hidden(4)
    for i in range(0, source.size(0) - 1, args.bptt):
        data, targets = get_batch(source, i, args.bptt)
        output, hidden, _, _ = model(data, hidden)
        total_loss += len(data) * criterion(output, targets).item()
        hidden = repackage_hidden(hidden)
    return total_loss / len(source)


def train():
    hidden, i = model.init_hidden(args.batch_size), 0
    while i < train_data.size(0) - 2:
        bptt = args.bptt if torch.rand(()) < 0.95 else args.bptt / 2
        seq_len = max(5, int(torch.normal(bptt, torch.tensor(3.0))))
        lr2 = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = lr2 * seq_len / args.bptt
        model.train()
        data, targets = get_batch(train_data, i, seq_len)
        # Starting each batch, we detach the hidden state from how it was previously produced.
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden, raw, dropped = model(data, hidden)
        loss = criterion(output, targets)
        loss = loss + args.alpha * dropped.pow(2).mean()
        loss = loss + args.beta * (raw[1:] - raw[:-1]).pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.param_groups[0]["lr"] = lr2
        i += seq_len
        print(f"lr {lr2:.1f} | bptt {seq_len} | loss {loss.item():.3f}")
        end_of_step(
            inputs=[train_data, val_data, data, targets],
            activations=[hidden, output, raw, dropped, loss]
            + [getattr(rnn.module, rnn.name) for rnn in model.rnns],
        )


for epoch in range(args.epochs):
    train()
    if isinstance(optimizer, torch.optim.ASGD):
        tmp = {}
        for prm in model.parameters():
            tmp[prm] = prm.detach().clone()
            prm.data.copy_(optimizer.state[prm]["ax"])
        val_loss = evaluate(val_data)
        for prm in model.parameters():
            prm.data.copy_(tmp[prm])
        del tmp, prm
    else:
        val_loss = evaluate(val_data)
    print(f"epoch {epoch} | ppl {math.exp(val_loss):.1f}")
    if isinstance(optimizer, torch.optim.SGD) and epoch + 1 >= args.sgd_epochs:
        optimizer = torch.optim.ASGD(
            model.parameters(), lr=args.lr, t0=0, lambd=0.0, weight_decay=args.wdecay
        )
