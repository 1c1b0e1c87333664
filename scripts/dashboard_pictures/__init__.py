"""Pictures of the dashboards, drawn by Grafana's published libraries in a headless Chromium.

The map:
    __main__.py     a live site, a Prometheus, a server of one page, all together
    browser.py      a Chromium over its pipe: open, wait, photograph
    build.mjs       bundles the page with the libraries of package.json
    page.jsx        a shipped dashboard as a scene: layout, choices, queries
    panels.jsx      panels around the parts of @grafana/ui
    prometheus.js   the way to Prometheus

Never part of CI: the libraries are 420 packages from npm.
"""
