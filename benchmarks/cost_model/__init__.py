"""How well the cost model predicts measured runs that it has not seen.

The map:
    __main__.py           errors per fold and question
    folds.py              predictions by groups, by clusters, and after one row
    peer.py               llm-analysis beside it
    llm_analysis_peer.py  llm-analysis in an interpreter of its own
"""
