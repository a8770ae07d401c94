"""Progress of a generation run on stderr: bars for people, JSON lines for machines.

Goes in: the `Progress` events of the generation room. Comes out: one bar a source (rows done, failed, truncated, in
flight, tokens/s, time left), or one JSON object a line.
"""
