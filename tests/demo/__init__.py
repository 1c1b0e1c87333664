"""The demo: its processes end, its report tells what was read, its picture is drawn."""
