"""Cells of a notebook: an editor that knows `# %%` runs them one by one, Python all of them."""

# %% A session as the last value of a cell shows what `snapconv FILE` prints.
import sys

import snapconv

session = snapconv.load(sys.argv[1])
session  # noqa: B018  # a notebook shows it

# %% Questions of the command line take its texts.
(check,) = session.check("2GiB")
print(check.sentence)
(tried,) = session.what_if("expandable_segments:True")
for one in tried.tried:
    print(f"{one.name}: {one.outcome.ledger.max_reserved_bytes:,} bytes reserved at most")

# %% The page of `snapconv view`; `.open()` shows it in the browser.
page = session.view()
