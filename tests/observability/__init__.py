"""Rules, dashboards and the metrics under them, on a real promtool, Prometheus and Alertmanager.

The map:
    rule_files.py         reads the shipped rules, spoils them, and gives them to promtool
    rule_cases.py         for each alert: samples that raise it, and clear it
    test_rules.py         every alert fires, clears, waits, names its runbook section
"""
