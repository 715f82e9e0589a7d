"""A scene is learned from photos as a radiance field of few tensors, as TensoRF does it: planes and lines instead of a grid, samples that matter are coloured by a small network, a mask of empty space, tensors that grow and a new Adam for them, total variation, a view rendered in chunks between."""

import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from programs import end_of_step, tell

ARGS = {
    "batch_size": 480,
    "n_voxel_init": 64**3,
    "n_voxel_final": 96**3,
    "upsamp_list": [2],
    "update_alphamask_list": [1],
    "n_iters": 5,
    "n_lamb_sigma": [16, 16, 16],
    "n_lamb_sh": [48, 48, 48],
    "data_dim_color": 27,
    "lr_init": 0.02,
    "lr_basis": 1e-3,
    "lr_decay_target_ratio": 0.1,
    "l1_weight": 8e-5,
    "tv_weight_density": 0.1,
    "tv_weight_app": 0.01,
    "vis_every": 2,
    "step_ratio": 0.5,
}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
AABB = torch.tensor([[-1.5, -1.5, -1.5], [1.5, 1.5, 1.5]])
NEAR_FAR = (2.0, 6.0)


def pictures(n_views, size, seed):
    """Rays of cameras around a ball, and the colour of each."""
    rng = np.random.default_rng(seed)
    rays, colours = [], []
    for _ in range(n_views):
        phi, theta = rng.uniform(0, 2 * np.pi), rng.uniform(0.2, 1.2)
        eye = 4.0 * np.array([np.cos(phi) * np.cos(theta), np.sin(phi) * np.cos(theta), np.sin(theta)])
        forward = -eye / np.linalg.norm(eye)
        right = np.cross(forward, [0, 0, 1.0])
        right /= np.linalg.norm(right)
        down = np.cross(forward, right)
        u, v = np.meshgrid(np.linspace(-0.4, 0.4, size), np.linspace(-0.4, 0.4, size))
        d = forward + u[..., None] * right + v[..., None] * down
        d = (d / np.linalg.norm(d, axis=-1, keepdims=True)).reshape(-1, 3)
        closest = eye + d * -(d @ eye)[:, None]
        hit = np.linalg.norm(closest, axis=1) < 0.9
        colours.append(np.where(hit[:, None], 0.5 + 0.5 * closest, 1.0))
        rays.append(np.concatenate([np.broadcast_to(eye, d.shape), d], 1))
    return torch.tensor(np.concatenate(rays)).float(), torch.tensor(np.concatenate(colours)).float()


def n_to_reso(n_voxels, bbox):
    size = bbox[1] - bbox[0]
    voxel = (size.prod() / n_voxels).pow(1 / 3)
    return (size / voxel).long().tolist()


def positional_encoding(positions, freqs):
    bands = 2 ** torch.arange(freqs, device=positions.device).float()
    pts = (positions[..., None] * bands).reshape(*positions.shape[:-1], freqs * positions.shape[-1])
    return torch.cat([torch.sin(pts), torch.cos(pts)], dim=-1)


def raw2alpha(sigma, dist):
    alpha = 1.0 - torch.exp(-sigma * dist)
    ones = torch.ones(alpha.shape[0], 1, device=alpha.device)
    transmission = torch.cumprod(torch.cat([ones, 1.0 - alpha + 1e-10], -1), -1)
    return alpha, alpha * transmission[:, :-1]


class AlphaGridMask(nn.Module):
    def __init__(self, aabb, alpha_volume):
        super().__init__()
        self.register_buffer("aabb", aabb)
        self.register_buffer("alpha_volume", alpha_volume[None, None])

    def sample_alpha(self, xyz):
        xyz = (xyz - self.aabb[0]) * (2.0 / (self.aabb[1] - self.aabb[0])) - 1
        return F.grid_sample(self.alpha_volume, xyz.view(1, -1, 1, 1, 3), align_corners=True).view(-1)


class MLPRenderFea(nn.Module):
    def __init__(self, in_channel, viewpe=2, feape=2, feature_c=128):
        super().__init__()
        self.viewpe, self.feape = viewpe, feape
        n = 2 * viewpe * 3 + 2 * feape * in_channel + 3 + in_channel
        self.mlp = nn.Sequential(
            nn.Linear(n, feature_c),
            nn.ReLU(inplace=True),
            nn.Linear(feature_c, feature_c),
            nn.ReLU(inplace=True),
            nn.Linear(feature_c, 3),
        )
        nn.init.constant_(self.mlp[-1].bias, 0)

    def forward(self, viewdirs, features):
        parts = [features, viewdirs, positional_encoding(features, self.feape)]
        parts.append(positional_encoding(viewdirs, self.viewpe))
        return torch.sigmoid(self.mlp(torch.cat(parts, dim=-1)))


class TensorVMSplit(nn.Module):
    MAT_MODE, VEC_MODE = ([0, 1], [0, 2], [1, 2]), (2, 1, 0)

    def __init__(self, aabb, grid_size, args):
        super().__init__()
        self.args = args
        self.register_buffer("aabb", aabb)
        self.density_shift, self.distance_scale, self.weight_thres = -4.0, 25.0, 1e-4
        self.alpha_mask = None
        self.update_step_size(grid_size)
        self.density_plane, self.density_line = self.init_one_svd(args["n_lamb_sigma"], grid_size, 0.1)
        self.app_plane, self.app_line = self.init_one_svd(args["n_lamb_sh"], grid_size, 0.1)
        self.basis_mat = nn.Linear(sum(args["n_lamb_sh"]), args["data_dim_color"], bias=False)
        self.render_module = MLPRenderFea(args["data_dim_color"])

    def update_step_size(self, grid_size):
        size = AABB[1] - AABB[0]
        units = size / (torch.tensor(grid_size) - 1)
        self.grid_size = grid_size
        self.step_size = units.mean().item() * self.args["step_ratio"]
        self.n_samples = min(int(size.norm().item() / self.step_size) + 1, 160)

    def init_one_svd(self, n_component, grid_size, scale):
        planes, lines = nn.ParameterList(), nn.ParameterList()
        for i, (a, b) in enumerate(self.MAT_MODE):
            planes.append(nn.Parameter(scale * torch.randn(1, n_component[i], grid_size[b], grid_size[a])))
            lines.append(nn.Parameter(scale * torch.randn(1, n_component[i], grid_size[self.VEC_MODE[i]], 1)))
        return planes, lines

    def get_optparam_groups(self, lr_spatialxyz, lr_network):
        spatial = (self.density_line, self.density_plane, self.app_line, self.app_plane)
        groups = [{"params": list(each), "lr": lr_spatialxyz} for each in spatial]
        networks = (self.basis_mat, self.render_module)
        return groups + [{"params": list(each.parameters()), "lr": lr_network} for each in networks]

    def coordinates(self, xyz):
        plane = torch.stack([xyz[..., mode] for mode in self.MAT_MODE]).detach().view(3, -1, 1, 2)
        line = torch.stack([xyz[..., mode] for mode in self.VEC_MODE])
        line = torch.stack((torch.zeros_like(line), line), dim=-1).detach().view(3, -1, 1, 2)
        return plane, line

    def compute_densityfeature(self, xyz):
        plane_at, line_at = self.coordinates(xyz)
        sigma = torch.zeros(xyz.shape[0], device=xyz.device)
        for i in range(3):
            plane = F.grid_sample(self.density_plane[i], plane_at[[i]], align_corners=True).view(-1, len(xyz))
            line = F.grid_sample(self.density_line[i], line_at[[i]], align_corners=True).view(-1, len(xyz))
            sigma = sigma + torch.sum(plane * line, dim=0)
        return sigma

    def compute_appfeature(self, xyz):
        plane_at, line_at = self.coordinates(xyz)
        planes, lines = [], []
        for i in range(3):
            planes.append(
                F.grid_sample(self.app_plane[i], plane_at[[i]], align_corners=True).view(-1, len(xyz))
            )
            lines.append(F.grid_sample(self.app_line[i], line_at[[i]], align_corners=True).view(-1, len(xyz)))
        return self.basis_mat((torch.cat(planes) * torch.cat(lines)).T)

    def feature2density(self, features):
        return F.softplus(features + self.density_shift)

    def sample_ray(self, rays_o, rays_d, is_train):
        near, far = NEAR_FAR
        vec = torch.where(rays_d == 0, torch.full_like(rays_d, 1e-6), rays_d)
        rate_a, rate_b = (self.aabb[1] - rays_o) / vec, (self.aabb[0] - rays_o) / vec
        t_min = torch.minimum(rate_a, rate_b).amax(-1).clamp(min=near, max=far)
        rng = torch.arange(self.n_samples, device=rays_o.device)[None].float()
        if is_train:
            rng = rng.repeat(rays_d.shape[-2], 1)
            rng += torch.rand_like(rng[:, [0]])
        z_vals = t_min[..., None] + self.step_size * rng
        pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., None]
        outside = ((self.aabb[0] > pts) | (pts > self.aabb[1])).any(dim=-1)
        return pts, z_vals, ~outside

    def normalize_coord(self, xyz):
        return (xyz - self.aabb[0]) * (2.0 / (self.aabb[1] - self.aabb[0])) - 1

    def forward(self, rays, white_bg=True, is_train=False):
        viewdirs = rays[:, 3:6]
        xyz, z_vals, ray_valid = self.sample_ray(rays[:, :3], viewdirs, is_train)
        dists = torch.cat((z_vals[:, 1:] - z_vals[:, :-1], torch.zeros_like(z_vals[:, :1])), dim=-1)
        viewdirs = viewdirs.view(-1, 1, 3).expand(xyz.shape)
        if self.alpha_mask is not None:
            alphas = self.alpha_mask.sample_alpha(xyz[ray_valid])
            ray_invalid = ~ray_valid
            ray_invalid[ray_valid] |= ~(alphas > 0)
            ray_valid = ~ray_invalid
        sigma = torch.zeros(xyz.shape[:-1], device=xyz.device)
        rgb = torch.zeros((*xyz.shape[:2], 3), device=xyz.device)
        if ray_valid.any():
            xyz = self.normalize_coord(xyz)
            sigma[ray_valid] = self.feature2density(self.compute_densityfeature(xyz[ray_valid]))
        _, weight = raw2alpha(sigma, dists * self.distance_scale)
        app_mask = weight > self.weight_thres
        if app_mask.any():
            app_features = self.compute_appfeature(xyz[app_mask])
            rgb[app_mask] = self.render_module(viewdirs[app_mask], app_features)
        acc_map = torch.sum(weight, -1)
        rgb_map = torch.sum(weight[..., None] * rgb, -2)
        if white_bg or (is_train and torch.rand((1,)) < 0.5):
            rgb_map = rgb_map + (1.0 - acc_map[..., None])
        with torch.no_grad():
            depth_map = torch.sum(weight * z_vals, -1) + (1.0 - acc_map) * rays[..., -1]
        return rgb_map.clamp(0, 1), depth_map

    @torch.no_grad()
    def up_sampling_vm(self, planes, lines, res):
        for i, (a, b) in enumerate(self.MAT_MODE):
            size = (res[b], res[a])
            planes[i] = nn.Parameter(
                F.interpolate(planes[i].data, size=size, mode="bilinear", align_corners=True)
            )
            size = (res[self.VEC_MODE[i]], 1)
            lines[i] = nn.Parameter(
                F.interpolate(lines[i].data, size=size, mode="bilinear", align_corners=True)
            )

    def upsample_volume_grid(self, res):
        self.up_sampling_vm(self.app_plane, self.app_line, res)
        self.up_sampling_vm(self.density_plane, self.density_line, res)
        self.update_step_size(res)

    @torch.no_grad()
    def update_alpha_mask(self):
        axes = [torch.linspace(0, 1, n) for n in self.grid_size]
        samples = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).to(self.aabb.device)
        dense_xyz = self.aabb[0] * (1 - samples) + self.aabb[1] * samples
        alpha = torch.zeros_like(dense_xyz[..., 0])
        for i in range(self.grid_size[0]):
            xyz = self.normalize_coord(dense_xyz[i].reshape(-1, 3))
            sigma = self.feature2density(self.compute_densityfeature(xyz))
            alpha[i] = (1 - torch.exp(-sigma * self.step_size * self.distance_scale)).view(alpha.shape[1:])
        alpha = alpha.clamp(0, 1).transpose(0, 2).contiguous()[None, None]
        alpha = F.max_pool3d(alpha, kernel_size=3, padding=1, stride=1).view(self.grid_size[::-1])
        alpha = (alpha >= alpha.mean()).float()
        self.alpha_mask = AlphaGridMask(self.aabb, alpha)
        print(f"alpha mask: {alpha.mean().item():.2%} of voxels are left")

    def density_l1(self):
        planes = sum(torch.mean(torch.abs(p)) for p in self.density_plane)
        return planes + sum(torch.mean(torch.abs(line)) for line in self.density_line)

    @staticmethod
    def tv_loss(planes):
        total = 0
        for x in planes:
            h = torch.pow(x[:, :, 1:] - x[:, :, :-1], 2).mean()
            w = torch.pow(x[..., 1:] - x[..., :-1], 2).mean()
            total = total + 1e-2 * 2 * (h + w)
        return total


@torch.no_grad()
def evaluation(tensorf, rays, rgbs, chunk=1024):
    found = [tensorf(part.to(device))[0].cpu() for part in rays.split(chunk)]
    return -10 * math.log10(F.mse_loss(torch.cat(found), rgbs).item())


def main():
    torch.manual_seed(20211202)
    allrays, allrgbs = pictures(6, 48, seed=0)
    test_rays, test_rgbs = pictures(1, 40, seed=1)
    tensorf = TensorVMSplit(AABB, n_to_reso(ARGS["n_voxel_init"], AABB), ARGS).to(device)
    optimizer = torch.optim.Adam(
        tensorf.get_optparam_groups(ARGS["lr_init"], ARGS["lr_basis"]), betas=(0.9, 0.99)
    )
    lr_factor = ARGS["lr_decay_target_ratio"] ** (1 / 30000)
    ids, cursor = torch.randperm(len(allrays)), 0
    for iteration in range(1, ARGS["n_iters"]):
        picked = ids[cursor : cursor + ARGS["batch_size"]]
        cursor += ARGS["batch_size"]
        rays, rgb = allrays[picked].to(device), allrgbs[picked].to(device)
        rgb_map, depth_map = tensorf(rays, is_train=True)
        loss = torch.mean((rgb_map - rgb) ** 2)
        total_loss = loss + ARGS["l1_weight"] * tensorf.density_l1()
        total_loss = total_loss + ARGS["tv_weight_density"] * tensorf.tv_loss(tensorf.density_plane)
        total_loss = total_loss + ARGS["tv_weight_app"] * tensorf.tv_loss(tensorf.app_plane)
        optimizer.zero_grad()
        total_loss.backward()
        optimizer.step()
        tell(weights=list(tensorf.parameters()), states=list(optimizer.state.values()))
        psnr = -10 * math.log10(loss.item())
        for group in optimizer.param_groups:
            group["lr"] *= lr_factor
        print(f"iteration {iteration}: psnr {psnr:.2f} loss {total_loss.item():.4f}")
        if iteration % ARGS["vis_every"] == 0:
            print(f"  test psnr {evaluation(tensorf, test_rays, test_rgbs):.2f}")
        if iteration in ARGS["update_alphamask_list"]:
            tensorf.update_alpha_mask()
        if iteration in ARGS["upsamp_list"]:
            tensorf.upsample_volume_grid(n_to_reso(ARGS["n_voxel_final"], AABB))
            groups = tensorf.get_optparam_groups(ARGS["lr_init"], ARGS["lr_basis"])
            optimizer = torch.optim.Adam(groups, betas=(0.9, 0.99))
        end_of_step(inputs=[rays, rgb], activations=[rgb_map, depth_map, loss, total_loss])
    torch.save({"args": ARGS, "state_dict": tensorf.state_dict()}, "tensorf.th")


if __name__ == "__main__":
    main()
