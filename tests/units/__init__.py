"""The shipped systemd units, carried out: their users, filters and folders around the services.

unit_file.py   what a unit says, and its sets of system calls as systemd resolves them
confine.py     a program that puts itself under all that, then becomes the service
machine.py     users made by the shipped sysusers file, folders, and services in them
"""
