"""What gets installed: the wheel, the map that builds it, the links that editors follow.

mapping.py      compares tracked folders with pyproject.toml and with the links: pure
wheel.py        builds sdist and wheel from a copy of the checkout; installs into a clean venv
test_mapping.py the three descriptions of our packages agree
test_wheel.py   what the wheel holds, and that it runs far away from the checkout
"""
