"""Fit the cost model to tables of measured configurations, and write what the package carries.

    python -m scripts.fit_cost_model DIR

DIR holds `train_configs.csv` and `vtrain_single_node.csv`. Takes some minutes.
"""

import sys
from pathlib import Path

import numpy as np

from wattmesh.controller.cost_model import fitted
from wattmesh.controller.cost_model.csv_files import read_table
from wattmesh.policies.parallelism.energy import PowerShares
from wattmesh.policies.parallelism.measured import Measured, fit_model, measured_rows
from wattmesh.policies.parallelism.row_fields import Row

TARGET = Path(__file__).resolve().parents[1] / "controller" / "cost_model" / fitted.NAME


def load(folder: Path) -> Measured:
    """Read both tables; rows of the second, of one small cluster, count a fifth."""
    rows: list[Row] = []
    weights: list[float] = []
    for name, weight in (("train_configs.csv", 1.0), ("vtrain_single_node.csv", 0.2)):
        _, found = read_table(folder / name)
        rows += found
        weights += [weight] * len(found)
    return measured_rows(rows, np.array(weights))


def main() -> int:
    """Fit and write."""
    measured = load(Path(sys.argv[1]))
    model = fit_model(measured, shares=PowerShares())
    fitted.save(model, TARGET)
    print(f"{len(measured.rows.kept)} rows; wrote {TARGET.name}, {TARGET.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
