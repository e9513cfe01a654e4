"""The headers of commits, which let readers list branches, sweep and collect garbage without decoding a payload."""
