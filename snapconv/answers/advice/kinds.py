"""The kinds of findings: one row each, with its sentences and its detector."""

from snapconv.answers.advice.evidence import Kind, Sort
from snapconv.answers.advice.gradients import kept_gradients
from snapconv.answers.advice.graphs import kept_graphs, unused_graphs
from snapconv.answers.advice.replaced import previous_kept
from snapconv.answers.advice.trades import (
    attention_scores,
    checkpointed_blocks,
    foreach_temporaries,
    full_logits,
    full_states,
    smaller_batch,
)

KINDS = (
    Kind(
        slug="previous-kept",
        sort=Sort.FAULT,
        what="{where} keeps its previous {thing} until the next one is made.",
        how=(
            "Delete the name before the next call: `del` it at the end of the loop body.",
            "Or move the loop body into a function, whose names end with each call.",
        ),
        costs="nothing",
        wrong_if="{where} reads the previous one",
        detect=previous_kept,
        is_cheap=True,
    ),
    Kind(
        slug="gradients-kept",
        sort=Sort.FAULT,
        what="Gradients of the last step stay in use through the next forward: {when}.",
        how=(
            "Call optimizer.zero_grad(set_to_none=True) right after optimizer.step().",
            "If the program calls model.zero_grad(), move that call there.",
        ),
        costs="nothing",
        wrong_if="the program accumulates gradients over several steps on purpose",
        detect=kept_gradients,
        is_cheap=True,
    ),
    Kind(
        slug="unused-graph",
        sort=Sort.FAULT,
        what="{where} keeps activations for a backward that never comes.",
        how=("Put `with torch.no_grad():` (or torch.inference_mode()) around the call.",),
        costs="nothing",
        wrong_if="a backward through this forward comes after the trace",
        detect=unused_graphs,
        estimated="activations that a forward without a graph holds together are inferred from its functions",
    ),
    Kind(
        slug="graphs-kept",
        sort=Sort.FAULT,
        what="{number} graphs of {where} are live together, and no backward uses them.",
        how=(
            "Keep `loss.item()` or `loss.detach()`, not the loss itself.",
            "`del loss` at the end of the loop body frees its graph before the next forward.",
        ),
        costs="nothing",
        wrong_if="a backward through all of them comes after the trace",
        detect=kept_graphs,
    ),
    Kind(
        slug="logits",
        sort=Sort.TRADE,
        what="{number} copies of the logits are live at the loss ({where}).",
        how=(
            "Compute the loss in {chunks} chunks, each under torch.utils.checkpoint.checkpoint;",
            "or use a fused loss, such as Liger's fused linear cross entropy.",
        ),
        costs="the last layer runs twice",
        wrong_if="other tensors have the size of the logits",
        detect=full_logits,
        estimated="every tensor of the size of the logits shrinks to the size of a chunk",
    ),
    Kind(
        slug="attention",
        sort=Sort.TRADE,
        what="{number} tensors hold attention scores ({line}).",
        how=("Use F.scaled_dot_product_attention; in transformers, attn_implementation='sdpa'.",),
        costs="the attention weights are no longer an output",
        wrong_if="the mask forces a kernel that stores the scores",
        detect=attention_scores,
        estimated="an upper limit: the kernel keeps queries, keys and values for backward",
    ),
    Kind(
        slug="foreach",
        sort=Sort.TRADE,
        what="{number} temporaries of the optimizer step are live together ({where}).",
        how=(
            "Pass fused=True to the optimizer (Adam, AdamW, SGD, Adagrad).",
            "Other optimizers: foreach=False keeps one or two temporaries of the largest parameter.",
        ),
        costs="nothing with fused=True; foreach=False makes the step slower",
        wrong_if="the optimizer supports neither",
        detect=foreach_temporaries,
    ),
    Kind(
        slug="checkpointing",
        sort=Sort.TRADE,
        what="{number} modules {modules}.* keep their activations for backward.",
        how=(
            "Call each under torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False);",
            "in transformers, model.gradient_checkpointing_enable().",
        ),
        costs="their forward runs twice: about a third more time",
        wrong_if="a module reads more than the output of the module before it",
        detect=checkpointed_blocks,
        estimated="each module keeps its last activation, and makes the others again for its backward",
    ),
    Kind(
        slug="states",
        sort=Sort.TRADE,
        what="{number} optimizer states have full precision.",
        how=("Use an optimizer with 8-bit states, from bitsandbytes or torchao.",),
        costs="precision; check that the loss still falls",
        wrong_if="the states already have 16 bits",
        detect=full_states,
        estimated="each state shrinks to a quarter; never compared with a recorded 8-bit optimizer",
    ),
    Kind(
        slug="batch",
        sort=Sort.TRADE,
        what="The batch or sequence is too large for the goal; {share} of it is small enough.",
        how=("Use {share} of the batch; in training, accumulate gradients over more batches.",),
        costs="more batches for the same samples",
        wrong_if="other memory grows with the batch",
        detect=smaller_batch,
        estimated="only activations, inputs and temporaries grow with the batch",
    ),
)
