"""Metrics: their catalogue, the instruments behind them, and the calls that feed them.

Three rules keep this a single mechanism. Whatever is rare is only a log event, and log events are counted. A stage that
takes time feeds its histogram and its debug event with one call. A state is read when somebody asks for it, and is not
counted along the way. Labels are from closed sets: never a workspace, a change set, an id, or anything a user sent. The
instruments belong to the process, as a scrape does.
"""
