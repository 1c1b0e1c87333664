"""Rules, dashboards and the metrics under them, on a real promtool, Prometheus and Alertmanager.

The map:
    rule_files.py                reads the shipped rules, spoils them, and gives them to promtool
    rule_series.py               series as promtool writes them
    rule_cases.py                for each alert: samples that raise it, and clear it
    rule_cases_measured.py       those on GPUs, nodes, budgets and grid signals
    prometheus.py                a private Prometheus, a private Alertmanager
    live.py                      a site that has everything a dashboard asks for
    shown.py                     the shipped dashboards as Grafana would ask for them
    test_rules.py                every alert fires, clears, waits, names its runbook section
    test_alert_delivery.py       one alert end to end
    test_dashboards.py           the JSON is what the Python makes, and Grafana knows every key
    test_panels.py               every query finds something on a Prometheus that scraped the site
    test_pairs_and_sites.py      two daemons on one journal, two sites, names with odd signs
    test_metrics_of_runs.py      the metrics that alerts rest on, at their source
"""
