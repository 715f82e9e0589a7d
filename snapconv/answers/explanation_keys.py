"""The keys of ``snapconv explain --json`` with their meanings; docs/reference/json.md is printed from them.

Their types are those of the fields of the answer, in explanation.py, in the same order.
"""

from snapconv.answers import explanation as shapes

EXPLANATION_KEYS: dict[type, dict[str, str]] = {
    shapes.Explanation: {
        "question": "the question",
        "n_allocations": "how many allocations are meant, also those beyond the 100 that are explained",
        "allocations": "in the order described above",
    },
    shapes.AllocationExplanation: {
        "device": "ordinal of the device; -1: pinned host memory",
        "id": "row of `snapconv_allocations` in the extended report of this device",
        "address": "where it begins, in hexadecimal",
        "name": (
            "name of the weight as in `weight_entries`; of a gradient or an optimizer state, "
            "that of its weight; null: not known"
        ),
        "requested_bytes": "the size that the program requested",
        "block_bytes": "what the allocator set aside",
        "is_exact": "false: `block_bytes` is a lower limit",
        "place": "where its block is",
        "lifetime": "when it was allocated and freed",
        "annotations": "texts that the program or the allocator attached to it",
        "origin": "the code that allocated and freed it",
        "verdict": "its category, and the evidence for and against it",
    },
    shapes.Place: {
        "segment": "the segment around it; null: not known",
        "pool": "its memory pool, two numbers; null: not known",
        "stream": "handle of its stream",
    },
    shapes.Lifetime: {
        "allocated": "event that allocated it; null: before the trace",
        "free_requested": "event that requested its free; null: none in the trace",
        "free_completed": "event that made its block free; null: none in the trace",
        "end_event": (
            "where its block became free, also where the trace lacks that event; null: live at the dump"
        ),
        "in_use_us": (
            "from the alloc, or the beginning of the trace, to the request to free, or the "
            "end of the trace; null: no times"
        ),
        "in_use_events": "the same in events",
        "is_live_at_peak": "whether it counts at the peak of allocated bytes",
        "is_live_at_dump": "whether its block is not free at the end",
    },
    shapes.Annotation: {
        "event": "the event that has it",
        "text": "its text",
        "is_internal": "true: by the allocator",
    },
    shapes.Origin: {
        "operation": "name of the operation; null: not known",
        "operation_from": "what it was inferred from",
        "stack": "the stack that allocated it, innermost first",
        "free_stack": "the stack that freed it; empty: none, or not known",
        "stack_roles": "the roles of the stack that allocated it",
        "free_stack_roles": "the roles of the stack that freed it",
    },
    shapes.CategoryVerdict: {
        "decision": "its category, and the rule that decided",
        "follows_from": "what a category with this evidence follows from",
        "is_wrong_when": "when that is wrong; empty for `unknown`",
        "others": "the opinions of the other rules, in the order of evaluation",
    },
    shapes.LifetimeEvent: {
        "event": "the event",
        "time_us": "when, since 1970; null: the file has no times",
        "after_us": "time since the first event of the trace",
        "iteration": "its iteration",
        "phase": "`forward`, `backward`, `optimizer`, `other` or `unknown`",
    },
    shapes.Opinion: {
        "category": "what the memory is for, if the rule is right",
        "evidence": "kind of evidence",
        "rule": "slug of the rule",
        "reason": "why the rule holds",
        "torch": "releases of torch that have such frames; null: the rule is not about frames of torch",
    },
    shapes.StackRole: {
        "role": "what the code is",
        "rule": "slug of the frame rule",
        "reason": "why the rule holds",
        "torch": "releases of torch that have such frames; null: a rule of your own",
        "frame": "the innermost frame that the rule is about; null: the stack has none",
    },
    shapes.Frame: {
        "function": "the function",
        "file": "its file; relative to the project root where it is below it",
        "line": "its line; null: not known",
        "is_project": "whether it is a frame of the project",
    },
    shapes.Segment: {
        "address": "where it begins",
        "total_bytes": "its size",
        "freed_event": "event that gave it back to the driver; null: it is there at the dump",
    },
}
