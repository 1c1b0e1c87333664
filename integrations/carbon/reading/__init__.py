"""Reading what carbon services answer: over HTTP, strictly, with a breaker.

The map:
    answers.py      what an answer other than 200 means
    believed.py     which values are believed, and why not
    breaker.py      leaves a provider alone that keeps failing
    credentials.py  what proves to a provider who asks
    fuel_mix.py     the intensity of a mix of generation
    http.py         JSON over HTTP with deadlines, retries and limits
    json_shape.py   where an unknown service keeps what, in its address and in its JSON, as the
                    settings say it
    rows.py         from a provider's rows to points
    trace.py        the file format of recorded traces
"""
