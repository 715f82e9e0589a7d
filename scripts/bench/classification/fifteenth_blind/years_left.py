"""How long patients live, and of what they die, is told from their genes by DeepHit of pycox: shared layers before a part for each cause, a likelihood and a ranking of pairs, Adam with warm restarts and decoupled decay, fit with early stopping on patients held out."""

import numpy as np
import pandas as pd
import torch
import torchtuples as tt
from programs import end_of_step, tell
from pycox.evaluation import EvalSurv
from pycox.models import DeepHit
from pycox.preprocessing.label_transforms import LabTransDiscreteTime
from sklearn.preprocessing import StandardScaler

N_PATIENTS, N_GENES, N_CLINICAL, N_DURATIONS, BATCH = 1_600, 5_000, 24, 30, 512


class LabTransform(LabTransDiscreteTime):
    def transform(self, durations, events):
        durations, is_event = super().transform(durations, events > 0)
        events[is_event == 0] = 0
        return durations, events.astype("int64")


def patients(seed=1234):
    rng = np.random.default_rng(seed)
    pathways = rng.normal(size=(N_PATIENTS, 40))
    genes = pathways @ (rng.normal(size=(40, N_GENES)) * (rng.random((40, N_GENES)) < 0.1)) + rng.normal(
        size=(N_PATIENTS, N_GENES)
    )
    clinical = rng.normal(size=(N_PATIENTS, N_CLINICAL))
    risks = [np.exp(0.5 * pathways[:, :4].sum(1) + 0.3 * clinical[:, 0]), 0.6 * np.exp(0.6 * clinical[:, 1])]
    times = np.stack([rng.exponential(8 / risk) for risk in risks] + [rng.uniform(1, 15, N_PATIENTS)])
    event = (times.argmin(0) + 1) % 3
    frame = pd.DataFrame(np.concatenate([genes, clinical], axis=1).astype("float32"))
    return frame, times.min(0).astype("float32"), event.astype("int64")


class CauseSpecificNet(torch.nn.Module):
    def __init__(self, in_features, shared, indiv, num_risks, out_features, dropout=0.3):
        super().__init__()
        self.shared_net = tt.practical.MLPVanilla(in_features, shared[:-1], shared[-1], True, dropout)
        self.risk_nets = torch.nn.ModuleList(
            tt.practical.MLPVanilla(in_features + shared[-1], indiv, out_features, True, dropout)
            for _ in range(num_risks)
        )

    def forward(self, input):
        out = torch.cat([input, self.shared_net(input)], dim=1)
        return torch.stack([net(out) for net in self.risk_nets], dim=1)


class ToldDeepHit(DeepHit):
    def _to_device(self, data):
        moved = super()._to_device(data)
        tell(inputs=moved)
        return moved


class EndOfStep(tt.callbacks.Callback):
    def before_step(self):
        tell(weights=self.model.net.parameters())

    def on_batch_end(self):
        end_of_step(activations=[self.model.batch_loss, self.model.batch_metrics])


def main():
    np.random.seed(1234)
    torch.manual_seed(1234)
    frame, durations, events = patients()
    order = np.random.permutation(N_PATIENTS)
    train, val, test = order[:1024], order[1024:1300], order[1300:]
    scaler = StandardScaler().fit(frame.iloc[train])
    x_train, x_val, x_test = (
        scaler.transform(frame.iloc[rows]).astype("float32") for rows in (train, val, test)
    )
    labtrans = LabTransform(N_DURATIONS, scheme="quantiles")
    y_train = labtrans.fit_transform(durations[train], events[train].copy())
    y_val = labtrans.transform(durations[val], events[val].copy())

    net = CauseSpecificNet(
        x_train.shape[1], shared=[256, 128], indiv=[256, 128], num_risks=2, out_features=len(labtrans.cuts)
    )
    optimizer = tt.optim.AdamWR(lr=0.01, decoupled_weight_decay=0.01, cycle_eta_multiplier=0.8)
    model = ToldDeepHit(net, optimizer, alpha=0.2, sigma=0.1, duration_index=labtrans.cuts)
    callbacks = [tt.callbacks.ClipGradNorm(net, 5.0), tt.callbacks.EarlyStoppingCycle(), EndOfStep()]
    log = model.fit(x_train, y_train, BATCH, 4, callbacks, verbose=True, val_data=(x_val, y_val))

    surv = model.predict_surv_df(x_test)
    evaluation = EvalSurv(surv, durations[test], events[test] != 0, censor_surv="km")
    print(log.to_pandas().tail(1), evaluation.concordance_td())
    model.save_net("deephit.pt")


if __name__ == "__main__":
    main()
