"""Langevin dynamics of ice with a MACE force field through ASE, with the trajectory and the energies logged."""

import numpy as np
import torch
from ase import units
from ase.build import molecule
from ase.io.trajectory import Trajectory
from ase.md.langevin import Langevin
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution, Stationary
from e3nn import o3
from mace import modules
from mace.calculators import MACECalculator
from programs import end_of_step

torch.manual_seed(2)
torch.set_default_dtype(torch.float32)


def potential():
    """Stands for a downloaded checkpoint: hydrogen and oxygen, 64 channels."""
    return modules.ScaleShiftMACE(
        atomic_inter_scale=0.8,
        atomic_inter_shift=0.0,
        r_max=4.5,
        num_bessel=8,
        num_polynomial_cutoff=5,
        max_ell=3,
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        num_interactions=2,
        num_elements=2,
        hidden_irreps=o3.Irreps("64x0e + 64x1o"),
        MLP_irreps=o3.Irreps("16x0e"),
        atomic_energies=np.array([-13.6, -2041.8]),
        avg_num_neighbors=30.0,
        atomic_numbers=[1, 8],
        correlation=3,
        gate=torch.nn.functional.silu,
    )


torch.save(potential(), "ice.model")
calculator = MACECalculator(model_paths="ice.model", device="cuda", default_dtype="float32")

water = molecule("H2O")
water.set_cell([3.1, 3.1, 3.1])
water.center()
water.pbc = True
atoms = water.repeat((3, 3, 3))
atoms.rattle(0.05, seed=0)
atoms.calc = calculator

MaxwellBoltzmannDistribution(atoms, temperature_K=280)
Stationary(atoms)
dynamics = Langevin(atoms, timestep=0.5 * units.fs, temperature_K=280, friction=0.01 / units.fs)


def report():
    potential_energy = atoms.get_potential_energy() / len(atoms)
    kinetic = atoms.get_kinetic_energy() / len(atoms)
    print(
        f"{dynamics.nsteps}: potential {potential_energy:.4f}, temperature {kinetic / (1.5 * units.kB):.0f} K"
    )


dynamics.attach(report, interval=2)
dynamics.attach(Trajectory("ice.traj", "w", atoms).write, interval=2)
dynamics.attach(end_of_step, interval=1)
dynamics.run(6)
