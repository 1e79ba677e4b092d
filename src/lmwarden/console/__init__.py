"""The operators' port: the JSON API and ``/metrics``, on a loop and a thread of their own."""
