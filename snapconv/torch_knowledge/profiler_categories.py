"""Categories in the files of torch.profiler (torch/profiler/_memory_profiler.py, 2.0 to 2.13)."""

# By the word that profile_plot writes; the first stands for what has none.
CATEGORIES = (
    "unknown",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "parameter",
    "optimizer_state",
)
# In the order of the columns of export_memory_timeline (_CATEGORY_TO_INDEX).
OF_TIMELINE = (
    "parameter",
    "optimizer_state",
    "input",
    "temporary",
    "activation",
    "gradient",
    "autograd_detail",
    "unknown",
)
