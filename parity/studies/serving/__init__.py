"""The port of a case as a server, under MLPerf's LoadGen, with every served prediction judged.

requests   the requests of a test at their fixed shapes
batching   the queue, and batches by tokens
buffers    host memory from which inputs are copied
cache      keys and values of shared rows
port       the port at fixed shapes, with staged copies of its inputs
server     the thread that answers queries
loadgen    LoadGen's settings, tests, and logs
judging    the truth of every request, and the verdict on LoadGen's log of predictions
cache_verdict   the verdict on the cache
auditing   the verdict on the benchmark's audit
command    the verb `serve`
"""
