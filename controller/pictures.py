"""How our pictures look: ink, quiet lines, one font; for the processes that draw."""

from typing import Any

INK, MUTED, FAINT = "#1f2933", "#7b8794", "#e4e7eb"

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "figure.facecolor": "white",
}
