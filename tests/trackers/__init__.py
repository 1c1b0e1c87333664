"""What a run's figures look like in the experiment trackers that people look at.

test_figure_log.py  what is written, when, and that nothing of it reaches the script
test_trackers.py    TensorBoard, Weights & Biases and MLflow, read back by their own packages
wandb_file.py       the records in an offline run of Weights & Biases
"""
