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
            "With model.zero_grad(), the same.",
        ),
        costs="nothing",
        wrong_if="gradients are added up over several steps on purpose",
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
        estimated="which activations a forward without a graph needs together follows from its functions",
    ),
    Kind(
        slug="graphs-kept",
        sort=Sort.FAULT,
        what="{number} graphs of {where} are in use together, and no backward uses them.",
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
        what="{number} copies of the logits are in use at the loss ({where}).",
        how=(
            "Compute the loss over {chunks} chunks, each under torch.utils.checkpoint; or use a fused one,",
            "such as Liger's fused linear cross entropy.",
        ),
        costs="the last layer runs twice",
        wrong_if="tensors of the same size are no logits",
        detect=full_logits,
        estimated="every tensor of the size of the logits becomes one of a chunk",
    ),
    Kind(
        slug="attention",
        sort=Sort.TRADE,
        what="{number} tensors hold the scores of attention ({line}).",
        how=("Use F.scaled_dot_product_attention; in transformers, attn_implementation='sdpa'.",),
        costs="the attention weights are no output any more",
        wrong_if="the mask needs a kernel that makes the scores after all",
        detect=attention_scores,
        estimated="at most this: the kernel keeps queries, keys and values for backward",
    ),
    Kind(
        slug="foreach",
        sort=Sort.TRADE,
        what="{number} temporaries of the optimizer's step are in use together ({where}).",
        how=(
            "Pass fused=True to the optimizer (Adam, AdamW, SGD, Adagrad).",
            "Others take foreach=False, which keeps one or two temporaries of the largest parameter.",
        ),
        costs="nothing where the step is fused; foreach=False makes it slower",
        wrong_if="the optimizer has no fused step",
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
        costs="their forward runs twice, about a third more time",
        wrong_if="a module reads more than the output of the one before it",
        detect=checkpointed_blocks,
        estimated="of each module the last activation stays, and all come back for its own backward",
    ),
    Kind(
        slug="states",
        sort=Sort.TRADE,
        what="{number} states of the optimizer have full precision.",
        how=("Use an optimizer with 8-bit states, of bitsandbytes or torchao.",),
        costs="precision of the states; check that the loss still falls",
        wrong_if="the states have 16 bits already",
        detect=full_states,
        estimated="a state becomes a quarter of its size; not tried, as no 8-bit optimizer was recorded",
    ),
    Kind(
        slug="batch",
        sort=Sort.TRADE,
        what="The batch, or the sequence, is larger than the goal allows: {share} of it reaches the goal.",
        how=("Use {share} of the batch, and add up gradients over more steps.",),
        costs="more steps for as many samples",
        wrong_if="what grows with the batch is not what was inferred",
        detect=smaller_batch,
        estimated="activations, inputs and temporaries grow with the batch, all else does not",
    ),
)
