"""Task metrics: the quality of a reference and of a port at the task, if labels exist.

A port may pass every tensor comparison and still be worse at the task. Rounding errors are small and of
either sign, so that they cancel over many rows. A systematic error of the same size adds up. With labels,
`evaluation` therefore compares the metrics as well.

The rule -------- The rule is that of `parity.verdict.rule`, for a number in place of a tensor. With the
metric m of the oracle, the reference and the port over the rows of all batches, a metric moves if

    |m_port - m_oracle| > k * |m_ref - m_oracle| + floor.                                         (1)

k is that of the model's output: the port may be k times as far off as the reference. The tensor's floor is
the port's allowed error beside an exact reference. The metric needs a floor as well: it is one number, and
the reference's may be exact by chance if its errors cancel. In the metric's floor, every element of the
output has the largest error that the verdict rule allows,

    e_i = k * |reference_i - oracle_i| + floor * |oracle_i|.

As in `parity.verdict.rule`, errors are independent and of zero mean: they have random signs s_i. Over
`PERTURBATIONS` samples of the signs

    floor = z * sqrt(mean((m(oracle + s * e) - m(oracle))^2)),

where z = 1.96 is the normal quantile of the interval below. This holds for metrics without a derivative, such
as a hit rate. k >= 2 makes a port with the reference's errors twice as safe as z states.

Rows are a sample, too. A metric is flagged if (1) holds and the 95 % interval of m_port - m_ref excludes 0.
The interval is that of the paired percentile bootstrap, which resamples rows with their label and both
results. (BCa needs one more evaluation for each row. Its correction is undefined if most rows do not differ,
the usual case.)
"""
