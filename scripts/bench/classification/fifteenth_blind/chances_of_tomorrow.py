"""A Chronos forecasts the demand of many shops without having seen them: series become tokens, a T5 in bfloat16 draws a score of futures for each with a cache, batch after batch of a backtest, quantiles and a scaled error of each batch."""

import numpy as np
import torch
from chronos import ChronosPipeline
from programs import end_of_step, tell
from transformers import T5Config, T5ForConditionalGeneration

CONTEXT, HORIZON, SEASON, N_SERIES, BATCH = 192, 14, 7, 40, 10
LEVELS = [0.1, 0.5, 0.9]


def stored_model(folder):
    """What the hub would give: a small T5 whose words are bins of scaled values."""
    config = T5Config(
        vocab_size=4096,
        d_model=256,
        d_kv=64,
        d_ff=1024,
        num_layers=4,
        num_decoder_layers=4,
        num_heads=4,
        dropout_rate=0.1,
        initializer_factor=0.05,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        architectures=["T5ForConditionalGeneration"],
        chronos_config={
            "tokenizer_class": "MeanScaleUniformBins",
            "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
            "context_length": CONTEXT,
            "prediction_length": 64,
            "n_tokens": 4096,
            "n_special_tokens": 2,
            "pad_token_id": 0,
            "eos_token_id": 1,
            "use_eos_token": True,
            "model_type": "seq2seq",
            "num_samples": 20,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
        },
    )
    T5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def demand(seed=0):
    rng = np.random.default_rng(seed)
    series = []
    for _ in range(N_SERIES):
        length = int(rng.integers(150, 400)) + HORIZON
        days = np.arange(length)
        week = rng.uniform(0.3, 1.8, SEASON)[days % SEASON]
        level = rng.lognormal(3, 1) * (1 + 0.3 * np.sin(2 * np.pi * (days + rng.integers(365)) / 365))
        values = rng.poisson(level * week).astype("float32")
        values[rng.random(length) < 0.02] = np.nan
        series.append(torch.from_numpy(values))
    return series


def scaled_error(median, future, past):
    """The mean absolute error against that of the value a week before."""
    errors = []
    for forecast, true, seen in zip(median, future, past):
        naive = (seen[SEASON:] - seen[:-SEASON]).abs()
        errors.append(((forecast - true).abs().nanmean() / naive.nanmean()).item())
    return np.nanmean(errors)


def main():
    torch.manual_seed(0)
    pipeline = ChronosPipeline.from_pretrained(
        stored_model("chronos-t5"), device_map="cuda", dtype=torch.bfloat16
    )

    def see(module, args, kwargs, output):
        cache = output.cache
        layers = [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
        tell(
            caches=[[layer.keys, layer.values] for layer in layers],
            inputs=[kwargs.get("decoder_input_ids"), kwargs.get("attention_mask")],
        )

    pipeline.model.model.register_forward_hook(see, with_kwargs=True)
    series = demand()
    quantiles, errors = [], []
    for start in range(0, len(series), BATCH):
        batch = series[start : start + BATCH]
        past, future = (
            [values[:-HORIZON] for values in batch],
            torch.stack([values[-HORIZON:] for values in batch]),
        )
        found, mean = pipeline.predict_quantiles(past, prediction_length=HORIZON, quantile_levels=LEVELS)
        quantiles.append(found)
        errors.append(scaled_error(found[..., 1], future, past))
        covered = ((future >= found[..., 0]) & (future <= found[..., 2])).float().mean().item()
        print(f"series {start:3d}: scaled error {errors[-1]:.3f}, {covered:.0%} within 80 %")
        end_of_step()
    np.save("forecasts.npy", torch.cat(quantiles).numpy())


if __name__ == "__main__":
    main()
