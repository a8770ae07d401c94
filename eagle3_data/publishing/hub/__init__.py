"""Versions on the Hub: the request, the plan of one commit, the client and its errors."""
