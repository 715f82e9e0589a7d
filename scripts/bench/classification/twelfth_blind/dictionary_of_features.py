"""What a GPT-Neo thinks is taken apart by a sparse autoencoder: activations of a layer come from a hook and are shuffled in a buffer on the device, directions of the decoder keep their length and lose gradients along themselves, dead features begin anew with their moments, the loss of words with what was put together again."""

import pprint
from functools import partial

import torch
import torch.nn.functional as F
from programs import end_of_step, tell
from torch import nn
from transformers import GPTNeoConfig, GPTNeoForCausalLM

cfg = {
    "seed": 1208,
    "batch_size": 512,
    "buffer_mult": 12,
    "lr": 3e-4,
    "num_tokens": 512 * 40,
    "l1_coeff": 3e-4,
    "l1_warmup": 4,
    "beta1": 0.9,
    "beta2": 0.99,
    "dict_mult": 8,
    "seq_len": 64,
    "model_batch_size": 8,
    "layer": 2,
    "d_vocab": 12000,
    "resample_every": 2,
    "device": "cuda:0" if torch.cuda.is_available() else "cpu",
}


def load_model():
    config = GPTNeoConfig(
        vocab_size=cfg["d_vocab"],
        hidden_size=320,
        num_layers=4,
        attention_types=[[["global", "local"], 2]],
        num_heads=5,
        window_size=32,
        max_position_embeddings=cfg["seq_len"],
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPTNeoForCausalLM(config).eval().requires_grad_(False)
    return model.to(cfg["device"])


class AutoEncoder(nn.Module):
    def __init__(self, d_mlp):
        super().__init__()
        d_hidden = d_mlp * cfg["dict_mult"]
        self.W_enc = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(d_mlp, d_hidden)))
        self.W_dec = nn.Parameter(nn.init.kaiming_uniform_(torch.empty(d_hidden, d_mlp)))
        self.b_enc = nn.Parameter(torch.zeros(d_hidden))
        self.b_dec = nn.Parameter(torch.zeros(d_mlp))
        self.register_buffer("n_fired", torch.zeros(d_hidden), persistent=False)
        self.W_dec.data[:] = self.W_dec / self.W_dec.norm(dim=-1, keepdim=True)

    def forward(self, x):
        x_cent = x - self.b_dec
        acts = F.relu(x_cent @ self.W_enc + self.b_enc)
        x_reconstruct = acts @ self.W_dec + self.b_dec
        l2_loss = (x_reconstruct.float() - x.float()).pow(2).sum(-1).mean(0)
        l1_loss = acts.float().abs().sum(-1).mean()
        return l2_loss, l1_loss, x_reconstruct, acts

    @torch.no_grad()
    def make_decoder_weights_and_grad_unit_norm(self):
        W_dec_normed = self.W_dec / self.W_dec.norm(dim=-1, keepdim=True)
        W_dec_grad_proj = (self.W_dec.grad * W_dec_normed).sum(-1, keepdim=True) * W_dec_normed
        self.W_dec.grad -= W_dec_grad_proj
        self.W_dec.data = W_dec_normed


class Buffer:
    """Activations of many texts, half of which are replaced when half of them were used."""

    def __init__(self, model, all_tokens):
        self.size = cfg["batch_size"] * cfg["buffer_mult"]
        self.model, self.all_tokens = model, all_tokens
        self.buffer = torch.zeros(self.size, model.config.hidden_size, device=cfg["device"])
        self.token_pointer, self.first, self.kept = 0, True, {}
        block = model.transformer.h[cfg["layer"]]
        block.mlp.register_forward_hook(self.keep)
        self.refresh()

    def keep(self, module, args, output):
        self.kept["mlp_out"] = output.detach()

    @torch.no_grad()
    def refresh(self):
        self.pointer = 0
        wanted = self.size if self.first else self.size // 2
        self.first = False
        while self.pointer < wanted:
            stop = self.token_pointer + cfg["model_batch_size"]
            tokens = self.all_tokens[self.token_pointer : stop].to(cfg["device"])
            self.model.transformer(tokens, use_cache=False)
            acts = self.kept.pop("mlp_out").flatten(0, 1)
            tell(inputs=[tokens, acts, self.buffer])
            acts = acts[: wanted - self.pointer]
            self.buffer[self.pointer : self.pointer + len(acts)] = acts
            self.pointer += len(acts)
            self.token_pointer = stop % len(self.all_tokens)
        self.pointer = 0
        self.buffer = self.buffer[torch.randperm(self.size, device=cfg["device"])]

    def next(self):
        out = self.buffer[self.pointer : self.pointer + cfg["batch_size"]]
        self.pointer += cfg["batch_size"]
        if self.pointer > self.size // 2 - cfg["batch_size"]:
            self.refresh()
        return out


def replace(module, args, output, encoder):
    return encoder(output.flatten(0, 1))[2].view_as(output)


@torch.no_grad()
def get_recons_loss(model, encoder, tokens):
    """How much worse words are guessed when a layer's output is put together again, or is nothing."""
    tokens = tokens.to(cfg["device"])
    mlp = model.transformer.h[cfg["layer"]].mlp
    loss = model(tokens, labels=tokens, use_cache=False).loss
    with_encoder = mlp.register_forward_hook(partial(replace, encoder=encoder))
    recons_loss = model(tokens, labels=tokens, use_cache=False).loss
    with_encoder.remove()
    with_nothing = mlp.register_forward_hook(lambda module, args, output: torch.zeros_like(output))
    zero_loss = model(tokens, labels=tokens, use_cache=False).loss
    with_nothing.remove()
    return ((zero_loss - recons_loss) / (zero_loss - loss)).item()


@torch.no_grad()
def re_init(encoder, optimizer):
    """Features that never fired get new weights, and moments that know nothing."""
    indices = (encoder.n_fired == 0).nonzero().flatten()
    new_W_enc = nn.init.kaiming_uniform_(torch.zeros_like(encoder.W_enc))
    new_W_dec = nn.init.kaiming_uniform_(torch.zeros_like(encoder.W_dec))
    encoder.W_enc.data[:, indices] = new_W_enc[:, indices]
    encoder.W_dec.data[indices] = F.normalize(new_W_dec[indices], dim=-1)
    encoder.b_enc.data[indices] = 0.0
    for name in ("exp_avg", "exp_avg_sq"):
        optimizer.state[encoder.W_enc][name][:, indices] = 0.0
        optimizer.state[encoder.W_dec][name][indices] = 0.0
        optimizer.state[encoder.b_enc][name][indices] = 0.0
    encoder.n_fired.zero_()
    return len(indices)


pprint.pprint(cfg)
torch.manual_seed(cfg["seed"])
model = load_model()
all_tokens = torch.randint(cfg["d_vocab"], (400, cfg["seq_len"]))
buffer = Buffer(model, all_tokens)
encoder = AutoEncoder(model.config.hidden_size).to(cfg["device"])
encoder_optim = torch.optim.Adam(encoder.parameters(), lr=cfg["lr"], betas=(cfg["beta1"], cfg["beta2"]))

for i in range(cfg["num_tokens"] // cfg["batch_size"]):
    acts = buffer.next()
    l2_loss, l1_loss, reconstructed, features = encoder(acts)
    loss = l2_loss + cfg["l1_coeff"] * min(1.0, (i + 1) / cfg["l1_warmup"]) * l1_loss
    loss.backward()
    encoder.make_decoder_weights_and_grad_unit_norm()
    encoder_optim.step()
    encoder_optim.zero_grad()
    encoder.n_fired += (features > 0).sum(0)
    print(f"{i}: l2 {l2_loss.item():.4f} l1 {l1_loss.item():.2f}")
    end_of_step(
        inputs=[acts, buffer.buffer],
        weights=list(encoder.parameters()),
        activations=[loss, l2_loss, l1_loss, reconstructed, features],
    )
    del loss, reconstructed, features, l2_loss, l1_loss
    if (i + 1) % cfg["resample_every"] == 0:
        score = get_recons_loss(model, encoder, all_tokens[-4:])
        print(f"   recovered {score:.1%}, begun anew {re_init(encoder, encoder_optim)}")
