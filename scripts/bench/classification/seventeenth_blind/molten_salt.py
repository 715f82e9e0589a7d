"""Langevin dynamics of rock salt with a MACE potential through ASE in float32: energies, forces and stress at every step."""

import numpy as np
import torch
from ase import units
from ase.build import bulk
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution
from e3nn import o3
from mace import modules
from mace.calculators import MACECalculator
from programs import end_of_step

torch.manual_seed(2)
np.random.seed(2)

model = modules.ScaleShiftMACE(
    r_max=5.0,
    num_bessel=8,
    num_polynomial_cutoff=5,
    max_ell=2,
    interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
    interaction_cls_first=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
    num_interactions=2,
    num_elements=2,
    hidden_irreps=o3.Irreps("64x0e + 64x1o"),
    MLP_irreps=o3.Irreps("16x0e"),
    atomic_energies=np.array([-1.5, -2.0]),
    avg_num_neighbors=40.0,
    atomic_numbers=[11, 17],
    correlation=3,
    gate=torch.nn.functional.silu,
    atomic_inter_scale=0.5,
    atomic_inter_shift=0.0,
)

atoms = bulk("NaCl", "rocksalt", a=5.64, cubic=True).repeat((2, 2, 2))
atoms.calc = MACECalculator(models=model, device="cuda", default_dtype="float32")
MaxwellBoltzmannDistribution(atoms, temperature_K=1100)
dynamics = Langevin(atoms, timestep=1.0 * units.fs, temperature_K=1100, friction=0.01 / units.fs)


def report():
    print(f"{atoms.get_potential_energy():.3f} eV, {atoms.get_temperature():.0f} K")
    end_of_step()


dynamics.attach(report, interval=1)
dynamics.run(4)
