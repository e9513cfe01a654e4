"""Metrics: the catalogue of all, the instruments behind them, and the calls that feed them.

Three rules keep this one mechanism. What is rare is a log event and nothing else: its events are counted. What takes
time is a stage, which feeds its histogram and its debug event with one call. What is a state is read when somebody
asks, and never counted. Labels are from closed sets: never a workspace, a change set, an id, or anything a user sent.
The instruments belong to the process, as a scrape does.
"""
