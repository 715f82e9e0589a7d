"""VideoPose3D lifts joints tracked in video to three dimensions: dilated temporal convolutions over 81 frames, Adam with AMSGrad, flipped averages when evaluated."""

import numpy as np
import torch
from programs import end_of_step
from torch import nn

torch.manual_seed(2)
rng = np.random.default_rng(2)
JOINTS, LEFT, RIGHT = 17, [4, 5, 6, 11, 12, 13], [1, 2, 3, 14, 15, 16]


class TemporalModelBase(nn.Module):
    def __init__(self, joints_in, features, joints_out, widths, dropout, channels):
        super().__init__()
        self.joints_out, self.widths = joints_out, widths
        self.drop = nn.Dropout(dropout)
        self.relu = nn.ReLU(inplace=True)
        self.pad = [widths[0] // 2]
        self.expand_bn = nn.BatchNorm1d(channels, momentum=0.1)
        self.shrink = nn.Conv1d(channels, joints_out * 3, 1)

    def set_bn_momentum(self, momentum):
        self.expand_bn.momentum = momentum
        for bn in self.layers_bn:
            bn.momentum = momentum

    def receptive_field(self):
        return 1 + 2 * sum(self.pad)

    def forward(self, x):
        shape = x.shape[:2]
        x = x.flatten(2).permute(0, 2, 1)
        x = self._forward_blocks(x)
        return x.permute(0, 2, 1).reshape(shape[0], -1, self.joints_out, 3)


class TemporalModel(TemporalModelBase):
    """For whole videos: dilated convolutions."""

    def __init__(self, joints_in, features, joints_out, widths, dropout=0.25, channels=512):
        super().__init__(joints_in, features, joints_out, widths, dropout, channels)
        self.expand_conv = nn.Conv1d(joints_in * features, channels, widths[0], bias=False)
        convs, bns, dilation = [], [], widths[0]
        for width in widths[1:]:
            self.pad.append((width - 1) * dilation // 2)
            convs += [nn.Conv1d(channels, channels, width, dilation=dilation, bias=False)]
            convs += [nn.Conv1d(channels, channels, 1, bias=False)]
            bns += [nn.BatchNorm1d(channels, momentum=0.1), nn.BatchNorm1d(channels, momentum=0.1)]
            dilation *= width
        self.layers_conv, self.layers_bn = nn.ModuleList(convs), nn.ModuleList(bns)

    def _forward_blocks(self, x):
        x = self.drop(self.relu(self.expand_bn(self.expand_conv(x))))
        for i in range(len(self.pad) - 1):
            pad = self.pad[i + 1]
            residual = x[:, :, pad : x.shape[2] - pad]
            x = self.drop(self.relu(self.layers_bn[2 * i](self.layers_conv[2 * i](x))))
            x = residual + self.drop(self.relu(self.layers_bn[2 * i + 1](self.layers_conv[2 * i + 1](x))))
        return self.shrink(x)


class TemporalModelOptimized1f(TemporalModelBase):
    """For training on single target frames: strided convolutions with the same weights."""

    def __init__(self, joints_in, features, joints_out, widths, dropout=0.25, channels=512):
        super().__init__(joints_in, features, joints_out, widths, dropout, channels)
        self.expand_conv = nn.Conv1d(joints_in * features, channels, widths[0], stride=widths[0], bias=False)
        convs, bns, dilation = [], [], widths[0]
        for width in widths[1:]:
            self.pad.append((width - 1) * dilation // 2)
            convs += [nn.Conv1d(channels, channels, width, stride=width, bias=False)]
            convs += [nn.Conv1d(channels, channels, 1, bias=False)]
            bns += [nn.BatchNorm1d(channels, momentum=0.1), nn.BatchNorm1d(channels, momentum=0.1)]
            dilation *= width
        self.layers_conv, self.layers_bn = nn.ModuleList(convs), nn.ModuleList(bns)

    def _forward_blocks(self, x):
        x = self.drop(self.relu(self.expand_bn(self.expand_conv(x))))
        for i in range(len(self.pad) - 1):
            residual = x[:, :, self.widths[i + 1] // 2 :: self.widths[i + 1]]
            x = self.drop(self.relu(self.layers_bn[2 * i](self.layers_conv[2 * i](x))))
            x = residual + self.drop(self.relu(self.layers_bn[2 * i + 1](self.layers_conv[2 * i + 1](x))))
        return self.shrink(x)


def mpjpe(predicted, target):
    return torch.mean(torch.norm(predicted - target, dim=-1))


def flipped(joints):
    joints = joints.copy()
    joints[..., 0] *= -1
    joints[..., LEFT + RIGHT, :] = joints[..., RIGHT + LEFT, :]
    return joints


def chunks(videos, pad, batch_size):
    pairs = [(v, t) for v in range(len(videos)) for t in range(len(videos[v][0]))]
    for start in range(0, len(pairs) - batch_size + 1, batch_size):
        order = rng.choice(len(pairs), batch_size, replace=False)
        poses_2d, poses_3d = [], []
        for v, t in (pairs[i] for i in order):
            flat, deep = videos[v]
            frames = np.clip(np.arange(t - pad, t + pad + 1), 0, len(flat) - 1)
            piece, target = flat[frames], deep[t : t + 1]
            if rng.random() < 0.5:
                piece, target = flipped(piece), flipped(target)
            poses_2d.append(piece)
            poses_3d.append(target)
        yield np.stack(poses_3d), np.stack(poses_2d)


videos = []
for _ in range(6):
    deep = rng.standard_normal((400, JOINTS, 3)).astype("float32").cumsum(0) * 0.01
    videos.append((deep[..., :2] / (deep[..., 2:].clip(-1, 1) + 4), deep))

widths = [3, 3, 3, 3]
model_train = TemporalModelOptimized1f(JOINTS, 2, JOINTS, widths)
model_eval = TemporalModel(JOINTS, 2, JOINTS, widths)
model_train = model_train.cuda()
model_eval = model_eval.cuda()
pad = (model_eval.receptive_field() - 1) // 2

lr, lr_decay, momentum = 1e-3, 0.95, 0.1
optimizer = torch.optim.Adam(model_train.parameters(), lr=lr, amsgrad=True)
for epoch in range(2):
    model_train.train()
    total = 0.0
    for number, (batch_3d, batch_2d) in enumerate(chunks(videos[:-1], pad, batch_size=256)):
        inputs_3d = torch.from_numpy(batch_3d).cuda()
        inputs_2d = torch.from_numpy(batch_2d).cuda()
        inputs_3d[:, :, 0] = 0
        optimizer.zero_grad()
        predicted_3d = model_train(inputs_2d)
        loss = mpjpe(predicted_3d, inputs_3d)
        total += inputs_3d.shape[0] * loss.item()
        loss.backward()
        optimizer.step()
        end_of_step(inputs=[inputs_3d, inputs_2d], activations=[predicted_3d, loss])

        if number % 2 == 1:
            with torch.no_grad():
                model_eval.load_state_dict(model_train.state_dict())
                model_eval.eval()
                flat, deep = videos[-1]
                flat = np.pad(flat, ((pad, pad), (0, 0), (0, 0)), "edge")
                both = torch.from_numpy(np.stack([flat, flipped(flat)])).cuda()
                predicted = model_eval(both)
                predicted[1, :, :, 0] *= -1
                predicted[1, :, LEFT + RIGHT] = predicted[1, :, RIGHT + LEFT]
                predicted = predicted.mean(dim=0, keepdim=True)
                error = mpjpe(predicted, torch.from_numpy(deep[None]).cuda())
                print(f"epoch {epoch} train {total:.3f} valid {1000 * error.item():.1f} mm")
    lr *= lr_decay
    for group in optimizer.param_groups:
        group["lr"] *= lr_decay
    momentum *= 0.9
    model_train.set_bn_momentum(momentum)
