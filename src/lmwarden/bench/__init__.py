"""The load tester: agent sessions, load generation, measurement, report.

* ``workload`` reads a workload file; ``sessions`` makes sessions of it, from a seed.
* ``client`` carries out one turn over HTTP; ``runner`` plays closed-loop levels against an endpoint;
  ``virtual`` plays the same sessions in virtual time.
* ``measure`` turns records of turns into a row of results; ``results`` is the schema; ``report`` draws it.
"""
