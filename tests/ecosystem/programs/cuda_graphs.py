"""The whole step in one CUDA graph, as torch's documentation has it: warm up on a side stream, capture, replay."""

import torch
from own_count import print_count

torch.manual_seed(0)
N, D_in, H, D_out = 64, 512, 256, 16
model = torch.nn.Sequential(
    torch.nn.Linear(D_in, H), torch.nn.Dropout(p=0.2), torch.nn.Linear(H, D_out), torch.nn.Dropout(p=0.1)
).cuda()
loss_fn = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

static_input = torch.randn(N, D_in, device="cuda")
static_target = torch.randn(N, D_out, device="cuda")

s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_fn(model(static_input), static_target)
        loss.backward()
        optimizer.step()
        print_count(model, optimizer)
torch.cuda.current_stream().wait_stream(s)

g = torch.cuda.CUDAGraph()
optimizer.zero_grad(set_to_none=True)
with torch.cuda.graph(g):
    static_loss = loss_fn(model(static_input), static_target)
    static_loss.backward()
    optimizer.step()

for _ in range(4):
    static_input.copy_(torch.randn(N, D_in, device="cuda"))
    static_target.copy_(torch.randn(N, D_out, device="cuda"))
    g.replay()
    print(static_loss.item())
