"""Task metrics: what the model's owner cares about, of the reference and of a port, where labels exist.

A port may pass every tensor comparison and still be worse at the task: rounding errors are small and go
either way, so that over many rows they cancel, while an error that is as small and always goes the same way
adds up. Where labels exist, `evaluation` therefore compares a port's metrics as well.

When a metric counts as moved
-----------------------------
The rule is that of `parity.verdict.rule`, for a number instead of a tensor. With m of the oracle, of the
reference and of the port, over the rows of all batches,

    |m_port - m_oracle| > k * |m_ref - m_oracle| + floor                                          (1)

k is that of the model's output: the port may be k times as far off as the reference. The tensor's floor, what
a port may lose where the reference happens to be exact, has to be carried over to the metric, and a metric is
one number: the reference's may be exact by luck, its errors having cancelled. Hence the floor is how far the
metric moves when every element of the output has an error as large as the verdict rule allows,

    e_i = k * |reference_i - oracle_i| + floor * |oracle_i|,

and, as everywhere in `parity.verdict.rule`, the errors are independent and of zero mean: random signs s_i.
Over
`DRAWS` such draws

    floor = z * sqrt(mean((m(oracle + s * e) - m(oracle))^2)),

where z = 1.96 is the normal quantile of the interval below. This holds for metrics that have no derivative,
such as a hit rate, and k >= 2 makes a port whose errors are like the reference's twice as safe as z says.

Rows are a sample, too. A metric is flagged if (1) holds and the 95 % interval of m_port - m_ref excludes 0.
The interval is that of the paired percentile bootstrap: rows are drawn with their label and both sides'
results. (BCa would need one evaluation for each row more, and its correction is undefined where most rows do
not differ, which is the usual case here.)
"""
