"""The words, tables, pages and figures of the length report; no statistic is computed here."""
