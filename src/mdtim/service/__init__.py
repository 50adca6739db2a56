"""The web page and the REST service; `mdtim serve` starts it.

The service process takes requests and keeps jobs. It never opens a table: tables are read, filled
and drawn in processes of their own (:mod:`mdtim.service.worker`), each with a memory limit, so a
hostile file or a crash ends one job and nothing else.
"""
