"""One file or small folder per outside system; none knows another.

The map:
    carbon/        providers of grid carbon intensity
    kubernetes/    JobSets and TrainJobs that follow each other: other sizes, sleep
    lightning/     Lightning (2.6): its Trainer's loops under a session
    slurm/         batch jobs that follow each other: other sizes, sleep
    pytorch/       parallelism in five dimensions, from PyTorch's own parts
    torchtitan/    torchtitan (0.3): its trainer under a session, through its extension points
    deepspeed.py   DeepSpeed ZeRO jobs: switched by restart, into another world size or stage
    mlflow.py      MLflow: a run's energy and grams beside its loss
    tensorboard.py TensorBoard: a run's energy and grams beside its loss
    torchrun.py    the launcher: starts a training job and starts it again
    wandb.py       Weights & Biases: a run's energy and grams beside its loss
"""
