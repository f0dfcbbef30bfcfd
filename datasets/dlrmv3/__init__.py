"""Requests of MLPerf's DLRMv3: a generator of the benchmark's users, and a reader of its files.

Source: mlcommons/inference, recommendation/dlrm_v3, ``streaming_synthetic_data.py`` for the users, and
``datasets/synthetic_streaming.py`` for the requests.
"""
