"""The numbers of the length report: distributions, censoring, intervals, tails, comparisons."""
