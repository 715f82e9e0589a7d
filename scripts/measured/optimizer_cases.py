"""The optimizers that are measured: packages, and what cannot be built from its weights alone, as rows."""

from dataclasses import dataclass, field
from typing import Any

# A weight of every kind. No two sides are alike, and none is the length of a table of 8-bit or
# 4-bit values or the number of blocks of 64 to 2048; the embedding is too long for a preconditioner
# by usual limits; the first three have blocks of 256 without a rest, and are long enough for 8-bit
# states (4096).
SHAPES: dict[str, tuple[int, ...]] = {
    "matrix": (320, 576),
    "embedding": (12000, 24),
    "convolution": (48, 32, 3, 5),
    "vector": (768,),
    "scalar": (),
}
ROLES = tuple(SHAPES)
MATRICES = ("matrix", "embedding")


@dataclass(frozen=True, slots=True)
class Package:
    """A package by its name on the registry, the module that has its optimizers, and classes that are none.

    ``has_torchvision``: it imports torchvision, which does not import where torch is a build of
    another kind.
    """

    name: str
    module: str
    left_out: tuple[str, ...] = ()
    has_torchvision: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """An optimizer with arguments.

    A row without options replaces what would be built from the weights alone, one with options only
    if it ``replaces_default``. ``takes``: "weights", or "named" weights, the "model", another
    "optimizer", or "groups" of the matrices and of all others with the keys of ``of_matrices`` and
    ``of_others``. ``call`` of step: "plain", with a "closure", or with gradients that have a
    "graph". ``options``: as in the table.
    """

    package: str
    module: str
    name: str
    options: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    takes: str = "weights"
    call: str = "plain"
    roles: tuple[str, ...] = ROLES
    of_matrices: dict[str, Any] = field(default_factory=dict)
    of_others: dict[str, Any] = field(default_factory=dict)
    replaces_default: bool = False


PACKAGES: tuple[Package, ...] = (
    Package("torch", "torch.optim", ("Optimizer",)),
    Package("adabelief-pytorch", "adabelief_pytorch"),
    Package("adafactor8bit", "adafactor8bit"),
    Package("adam-mini", "adam_mini"),
    Package("adamp", "adamp"),
    Package("adamw-bf16", "adamw_bf16"),
    Package("adan-pytorch", "adan_pytorch"),
    Package("adv-optm", "adv_optm"),
    Package("apollo-torch", "apollo_torch"),
    Package("atiny", "Atiny"),
    Package("bitsandbytes", "bitsandbytes.optim"),
    Package("came-pytorch", "came_pytorch"),
    Package("dadaptation", "dadaptation"),
    Package("fairscale", "fairscale.optim"),
    Package("galore-torch", "galore_torch"),
    Package("grokadamw", "grokadamw"),
    Package("heavyball", "heavyball", ("PSGDBase", "SOAPBase")),
    Package("ivon-opt", "ivon"),
    Package("kron-torch", "kron_torch"),
    Package("lion-pytorch", "lion_pytorch"),
    Package("lomo-optim", "lomo_optim"),
    Package("madgrad", "madgrad"),
    Package("monai", "monai.optimizers"),
    Package("muon-fsdp2", "muon_fsdp2"),
    Package("muon-optimizer", "muon"),
    Package("prodigyopt", "prodigyopt"),
    Package("pytorch-lamb", "pytorch_lamb"),
    Package("pytorch-optimizer", "pytorch_optimizer", ("BaseOptimizer",)),
    Package("pytorch-ranger", "pytorch_ranger"),
    Package("qhoptim", "qhoptim.pyt"),
    Package("ranger-adabelief", "ranger_adabelief"),
    Package("ranger21", "ranger21"),
    Package("schedulefree", "schedulefree"),
    Package("timm", "timm.optim", has_torchvision=True),
    Package("torch-optimi", "optimi"),
    Package("torch-optimizer", "torch_optimizer"),
    Package("torchao", "torchao.optim"),
    Package("transformers", "transformers.optimization"),
)


def _torch(name: str, options: str, call: str = "plain", **arguments: Any) -> Case:
    return Case("torch", "torch.optim", name, options, arguments, call=call)


def _low_rank(package: str, name: str, **arguments: Any) -> Case:
    """Return the case of an optimizer with a group of matrices that it projects to a rank of 64."""
    projection = {"rank": 64, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    if package == "apollo-torch":
        projection |= {"proj": "random", "scale_type": "channel"}
    module = package.replace("-", "_")
    return Case(package, module, name, "rank=64", arguments, takes="groups", of_matrices=projection)


CASES: tuple[Case, ...] = (
    *(
        _torch(name, "foreach=False", foreach=False)
        for name in (
            *(
                "ASGD",
                "Adadelta",
                "Adafactor",
                "Adagrad",
                "Adam",
                "AdamW",
                "Adamax",
                "NAdam",
                "RAdam",
            ),
            *("RMSprop", "Rprop", "SGD"),
        )
    ),
    *(_torch(name, "fused=True", fused=True) for name in ("Adagrad", "Adam", "AdamW", "SGD")),
    *(
        _torch(name, "capturable=True", capturable=True)
        for name in (
            "ASGD",
            "Adadelta",
            "Adam",
            "AdamW",
            "Adamax",
            "NAdam",
            "RAdam",
            "RMSprop",
            "Rprop",
        )
    ),
    *(
        _torch(name, "weight_decay=0.1", weight_decay=0.1)
        for name in ("Adadelta", "Adagrad", "Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "SGD")
    ),
    *(_torch(name, "amsgrad=True", amsgrad=True) for name in ("Adam", "AdamW")),
    *(_torch(name, "maximize=True", maximize=True) for name in ("AdamW", "SGD")),
    _torch("SGD", "momentum=0.9", momentum=0.9),
    _torch("SGD", "momentum=0.9, nesterov=True", momentum=0.9, nesterov=True),
    _torch("SGD", "momentum=0.9, foreach=False", momentum=0.9, foreach=False),
    _torch("SGD", "momentum=0.9, fused=True", momentum=0.9, fused=True),
    _torch("SGD", "momentum=0.9, weight_decay=0.1", momentum=0.9, weight_decay=0.1),
    _torch("RMSprop", "momentum=0.9", momentum=0.9),
    _torch("RMSprop", "centered=True", centered=True),
    _torch("RMSprop", "centered=True, momentum=0.9", centered=True, momentum=0.9),
    _torch("LBFGS", "", "closure"),
    _torch("LBFGS", "history_size=2", "closure", history_size=2),
    _torch("LBFGS", "line_search_fn=strong_wolfe", "closure", line_search_fn="strong_wolfe"),
    Case("adabelief-pytorch", "adabelief_pytorch", "AdaBelief", "amsgrad=True", {"amsgrad": True}),
    Case("adafactor8bit", "adafactor8bit", "Adafactor8Bit", takes="named"),
    Case("adam-mini", "adam_mini", "Adam_mini", takes="named"),
    Case(
        "adamp",
        "adamp",
        "SGDP",
        "lr, momentum=0.9",
        {"lr": 0.1, "momentum": 0.9},
        replaces_default=True,
    ),
    _low_rank("apollo-torch", "APOLLOAdamW"),
    *(
        Case(
            "bitsandbytes",
            "bitsandbytes.optim",
            name,
            "lr, momentum=0.9",
            {"lr": 0.1, "momentum": 0.9},
            replaces_default=True,
        )
        for name in ("LARS", "LARS32bit", "LARS8bit", "PytorchLARS", "SGD", "SGD32bit", "SGD8bit")
    ),
    Case("came-pytorch", "came_pytorch", "CAME", "lr", {"lr": 1e-3}, replaces_default=True),
    Case("fairscale", "fairscale.optim", "AdaScale", takes="optimizer"),
    _low_rank("galore-torch", "GaLoreAdamW"),
    _low_rank("galore-torch", "GaLoreAdamW8bit"),
    _low_rank("galore-torch", "GaLoreAdafactor", lr=None),
    Case("ivon-opt", "ivon", "IVON", "lr, ess", {"lr": 0.1, "ess": 1e4}, replaces_default=True),
    Case("lomo-optim", "lomo_optim", "Lomo", takes="model"),
    Case("lomo-optim", "lomo_optim", "AdaLomo", takes="model"),
    Case("madgrad", "madgrad", "MADGRAD", "momentum=0", {"momentum": 0}),
    *(
        Case(
            package,
            module,
            name,
            "matrices, others",
            takes="groups",
            replaces_default=True,
            of_matrices={"use_muon": True},
            of_others={"use_muon": False},
        )
        for package, module, name in (
            ("muon-fsdp2", "muon_fsdp2", "Muon"),
            ("muon-optimizer", "muon", "SingleDeviceMuonWithAuxAdam"),
            ("muon-optimizer", "muon", "MuonWithAuxAdam"),
        )
    ),
    *(
        Case(
            "pytorch-optimizer",
            "pytorch_optimizer",
            name,
            "matrices, others",
            takes="groups",
            replaces_default=True,
            of_matrices={"use_muon": True},
            of_others={"use_muon": False},
        )
        for name in ("AdaGO", "AdaMuon", "DistributedMuon", "Muon", "MuonClip", "NorMuon")
    ),
    *(
        Case("pytorch-optimizer", "pytorch_optimizer", name, takes="model")
        for name in ("AdaLOMO", "AdamMini", "LOMO")
    ),
    *(
        Case("pytorch-optimizer", "pytorch_optimizer", name, call="graph")
        for name in ("AdaHessian", "SophiaH")
    ),
    *(
        Case("pytorch-optimizer", "pytorch_optimizer", name, call="closure")
        for name in ("AliG", "LBFGS")
    ),
    *(
        Case("pytorch-optimizer", "pytorch_optimizer", name, takes="optimizer")
        for name in ("Lookahead", "ScheduleFreeWrapper", "OrthoGrad", "TRAC")
    ),
    Case(
        "pytorch-optimizer",
        "pytorch_optimizer",
        "BSAM",
        "num_data",
        {"num_data": 1000},
        call="closure",
        replaces_default=True,
    ),
    Case(
        "pytorch-optimizer",
        "pytorch_optimizer",
        "Ranger21",
        "num_iterations",
        {"num_iterations": 1000},
        replaces_default=True,
    ),
    Case("prodigyopt", "prodigyopt", "Prodigy", "slice_p=11", {"slice_p": 11}),
    Case(
        "qhoptim",
        "qhoptim.pyt",
        "QHM",
        "lr, nu, momentum",
        {"lr": 0.1, "nu": 0.7, "momentum": 0.9},
        replaces_default=True,
    ),
    Case(
        "ranger21",
        "ranger21",
        "Ranger21",
        "num_epochs",
        {"lr": 1e-3, "num_epochs": 10, "num_batches_per_epoch": 100},
        replaces_default=True,
    ),
    Case(
        "ranger21",
        "ranger21",
        "Ranger21abel",
        "num_epochs",
        {"lr": 1e-3, "num_epochs": 10, "num_batches_per_epoch": 100},
        replaces_default=True,
    ),
    *(
        Case("schedulefree", "schedulefree", name, call="closure")
        for name in (
            "AdamWScheduleFreeClosure",
            "RAdamScheduleFreeClosure",
            "SGDScheduleFreeClosure",
        )
    ),
    Case("schedulefree", "schedulefree", "AdamWScheduleFree", "foreach=False", {"foreach": False}),
    *(
        Case("torch-optimi", "optimi", name, "kahan_sum=False", {"kahan_sum": False})
        for name in ("AdamW", "Adan", "Lion", "SGD", "StableAdamW")
    ),
    *(
        Case("torch-optimi", "optimi", name, "foreach=False", {"foreach": False})
        for name in ("AdamW", "Adan", "Lion", "SGD", "StableAdamW")
    ),
    Case("torch-optimizer", "torch_optimizer", "Adahessian", call="graph"),
    Case("torch-optimizer", "torch_optimizer", "Lookahead", takes="optimizer"),
    Case("torchao", "torchao.optim", "AdamW8bit", "block_size=128", {"block_size": 128}),
    Case(
        "torchao",
        "torchao.optim",
        "_AdamW",
        "bf16_stochastic_round=True",
        {"bf16_stochastic_round": True},
    ),
    Case("transformers", "transformers.optimization", "Adafactor", "beta1=0.9", {"beta1": 0.9}),
)
