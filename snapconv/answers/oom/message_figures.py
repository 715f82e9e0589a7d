"""The figures that texts about memory may have: their nouns, and the patterns of their numbers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FigureName:
    """A figure that a text may have: its noun, and the unit by which its number is read.

    ``letter`` is that of the unit (k, m, g) of a number of bytes that the text writes without one.
    """

    noun: str
    unit: str = "bytes"
    letter: str = ""


# Patterns in small letters and without white space, by the unit.
NUMBERS = {
    # The end of a text may cut a unit.
    "size": r"\d{1,20}(?:\.\d{0,9})?(?:bytes|[kmgtp]i?b|b|[kmgtp]i?$)",
    # NumPy writes three digits: `315. GiB`; Java groups digits by points in some languages.
    "bytes": r"\d{1,3}(?:\.\d{3}){2,6}bytes|"
    r"\d[\d,]{0,20}(?:\.\d{1,9}|\.(?=[kmgt]ib))?(?:bytes?|[kmgtp]i?b|b)?",
    "tokens": r"\d[\d,]{0,15}",
    "requests": r"\d{1,9}",
    "number": r"\d{1,9}",
    "percent": r"\d{1,3}(?:\.\d{1,4})?",
    "seconds": r"\d{1,6}",
    "share": r"\d?\.\d{1,6}|\d",
    "shape": r"[\[(][\d,]{1,200}[\])]",
    # Without the digits of a number that follows.
    "name": r"float(?:8|16|32|64|128)?|half|bfloat16|double|bool|string|u?int(?:8|16|32|64)|object"
    r"|<u\d{1,9}|"
    "complex(?:64|128|256)",
}
# ``tried`` and ``device`` are fields of OomMessage; the others have rows of their own.
FIGURES = {
    "tried": FigureName("requested"),
    "free": FigureName("free on the device"),
    "total": FigureName("the whole device"),
    "allocated": FigureName("allocated"),
    "reserved": FigureName("reserved"),
    "allowed": FigureName("allowed"),
    "device": FigureName("device", "number"),
    "shape": FigureName("shape", "shape"),
    "type": FigureName("type", "name"),
    "needed": FigureName("needed"),
    "estimated": FigureName("needed, as estimated"),
    "available": FigureName("available"),
    "needed_vram": FigureName("needed on the GPU"),
    "state": FigureName("for its state"),
    "kv": FigureName("the KV cache"),
    "tried_mib": FigureName("requested", letter="m"),
    "margin": FigureName("to be left free"),
    "taken_mib": FigureName("taken on the GPU", letter="m"),
    "recommended_mib": FigureName("recommended at most", letter="m"),
    "blobs": FigureName("for the data of the network"),
    "runtime": FigureName("kept by the runtime"),
    "program": FigureName("the compiled program"),
    "arguments": FigureName("arguments"),
    "in_all": FigureName("all together"),
    "available_mib": FigureName("available", letter="m"),
    "swap_mib": FigureName("swap free", letter="m"),
    "engine_mib": FigureName("held by TensorRT's engines", letter="m"),
    "lacking": FigureName("short"),
    "wanted": FigureName("wanted by the setting"),
    "limit": FigureName("the limit"),
    "missing": FigureName("missing"),
    "rounded": FigureName("requested, rounded"),
    "weights": FigureName("weights"),
    "outside": FigureName("outside torch"),
    "activations": FigureName("activations at most"),
    "before_start": FigureName("used before its start"),
    "before": FigureName("free before"),
    "held_before": FigureName("allocated before"),
    "after": FigureName("free when it failed"),
    "used": FigureName("used"),
    "cached": FigureName("pages of files in memory"),
    "buffer": FigureName("all that this buffer was to hold"),
    "swap": FigureName("swap used"),
    "all_swap": FigureName("all swap"),
    "address_space": FigureName("of address space"),
    "peak": FigureName("allocated at most"),
    "largest_request": FigureName("largest request so far"),
    "process": FigureName("held by the process"),
    "free_gib": FigureName("free on the device", letter="g"),
    "before_model": FigureName("free before the model", letter="g"),
    "after_model": FigureName("free after the model", letter="g"),
    "after_sampler": FigureName("free after the sampler", letter="g"),
    "after_first_cache": FigureName("free after the first KV cache", letter="g"),
    "after_drafter": FigureName("free after the drafter", letter="g"),
    "after_resources": FigureName("free after other resources", letter="g"),
    "total_gib": FigureName("the whole device", letter="g"),
    "used_gib": FigureName("used", letter="g"),
    "utilization": FigureName("the setting's share", "share"),
    "least_share": FigureName("the least share that fits the weights", "share"),
    "length": FigureName("requested", "tokens"),
    "fits": FigureName("fit", "tokens"),
    "missing_tokens": FigureName("short", "tokens"),
    "prefill": FigureName("of them prefill", "tokens"),
    "residues": FigureName("length of the sequence", "number"),
    "sequences": FigureName("sequences in the batch", "number"),
    "requests": FigureName("in the trial run", "requests"),
    "free_slots": FigureName("free slots", "number"),
    "buffers": FigureName("buffers allowed", "number"),
    "wanted_slots": FigureName("requests to run", "number"),
    "most_sequences": FigureName("sequences at once, as set", "number"),
    "blocks": FigureName("blocks for sequences", "number"),
    "layers": FigureName("layers on the GPU, as set", "number"),
    "pages": FigureName("pages needed", "number"),
    "free_pages": FigureName("pages free", "number"),
    "all_pages": FigureName("pages in all", "number"),
    "parameters": FigureName("parameters"),
    "constants": FigureName("constants"),
    "outputs": FigureName("outputs"),
    "temporary": FigureName("temporary"),
    "gaps": FigureName("lost in gaps"),
    "pieces": FigureName("free in all pieces"),
    "largest": FigureName("largest free block"),
    "frames": FigureName("frames loaded", "number"),
    "flushes": FigureName("times in the step", "number"),
    "contexts": FigureName("contexts at once", "number"),
    "kills": FigureName("kills in the step", "number"),
    "pressure": FigureName("percent of the time waited for memory", "percent"),
    "most_pressure": FigureName("percent allowed", "percent"),
    "waited": FigureName("seconds above it", "seconds"),
    "part": FigureName("part", "name"),
    "pool": FigureName("held by the pool"),
    "pool_and_request": FigureName("the pool with this request"),
    "job_request": FigureName("requested from the scheduler"),
    "machine": FigureName("the machine's memory"),
    "kernel_memory": FigureName("of it the kernel's own"),
    "page_tables": FigureName("its page tables"),
    "file_pages": FigureName("its pages of files"),
    "shared_pages": FigureName("its shared pages"),
    "array": FigureName("the largest array"),
    "unpadded": FigureName("that array without padding"),
    "padding": FigureName("padding in that array"),
    "padded": FigureName("all arrays with padding"),
    "budget": FigureName("percent of its limit allowed", "percent"),
    "heap_limit": FigureName("the heap allowed"),
    "heap_free": FigureName("free in the heap"),
    "metaspace_limit": FigureName("the metaspace allowed"),
    "heap_mib": FigureName("the heap at the end", letter="m"),
    "process_kib": FigureName("held by the process", letter="k"),
    "limit_kib": FigureName("the limit", letter="k"),
    "backend": FigureName("kind of device", "name"),
}
# The figure of a name that FIGURES does not have.
SIZE = FigureName("", "size")
# By the name of a type, in the words of TensorFlow and torch.
ITEM_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "uint16": 2,
    "float": 4,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "double": 8,
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
}
