"""What answers are worth: metrics, how far to trust them, and pictures. One file a concern; nothing here runs a model.

`scores`, `entities` and `answers` are metrics, `trust` their intervals and the comparison of two models, `calibration` what
probabilities are worth; `kinds` names the metrics of each kind of answer, `tally` gathers an evaluation example by example, and `pictures` draws it.
"""

from unmask.tasks.metrics.answers import best_threshold, exact, normalised, overlap_of_words
from unmask.tasks.metrics.calibration import Bin, brier, calibration_error, reliability, temperature
from unmask.tasks.metrics.entities import Line, entity_f1, entity_table
from unmask.tasks.metrics.kinds import KINDS, LOWER, named
from unmask.tasks.metrics.pictures import confusion_picture, reliability_picture
from unmask.tasks.metrics.scores import (
    absolute_error,
    accuracy,
    average_precision,
    best_thresholds,
    f1,
    log_loss,
    matthews,
    mean,
    pearson,
    positive_f1,
    r2,
    roc_area,
    spearman,
    squared_error,
    top,
)
from unmask.tasks.metrics.tally import Comparison, Tally, Worst, compare, score
from unmask.tasks.metrics.trust import Difference, Interval, McNemar, differences, intervals, mcnemar, share

__all__ = [
    "KINDS",
    "LOWER",
    "Bin",
    "Comparison",
    "Difference",
    "Interval",
    "Line",
    "McNemar",
    "Tally",
    "Worst",
    "absolute_error",
    "accuracy",
    "average_precision",
    "best_threshold",
    "best_thresholds",
    "brier",
    "calibration_error",
    "compare",
    "confusion_picture",
    "differences",
    "entity_f1",
    "entity_table",
    "exact",
    "f1",
    "intervals",
    "log_loss",
    "matthews",
    "mcnemar",
    "mean",
    "named",
    "normalised",
    "overlap_of_words",
    "pearson",
    "positive_f1",
    "r2",
    "reliability",
    "reliability_picture",
    "roc_area",
    "score",
    "share",
    "spearman",
    "squared_error",
    "temperature",
    "top",
]
