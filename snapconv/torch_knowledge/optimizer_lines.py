"""The lines of torch's Adam and AdamW that only amsgrad runs: nothing else shows that it keeps a third state.

Made by scripts/read_torch_lines.py from torch 2.0.1, 2.1.2, 2.2.2, 2.3.1, 2.4.1, 2.5.1, 2.6.0, 2.7.1, 2.8.0,
2.9.1, 2.10.0, 2.11.0, 2.12.0, 2.13.0, 2.14.1 and 2.15.0. Of these lines the root of the largest averages is
allocated. Left out is what any other release has the root of all averages at.
"""

# By function: since 2.7 AdamW is an Adam.
AMSGRAD: dict[str, frozenset[int]] = {
    "_multi_tensor_adam": frozenset(
        (
            473,
            501,
            540,
            554,
            563,
            573,
            577,
            600,
            609,
            673,
            701,
            727,
            743,
            747,
            755,
            760,
            761,
            771,
            775,
            788,
            789,
        )
    ),
    "_multi_tensor_adamw": frozenset((527, 560, 569, 573, 574, 583, 584, 597, 598, 604, 607, 666, 697)),
    "_single_tensor_adam": frozenset(
        (370, 389, 405, 406, 417, 428, 429, 437, 451, 474, 497, 505, 507, 516, 517, 523, 531, 542, 543)
    ),
    "_single_tensor_adamw": frozenset((402, 407, 416, 425, 430, 438, 439, 445, 446, 452, 462, 468, 469, 475)),
}
