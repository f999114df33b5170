"""The checks of `doctor`: functions from an `ExaminedGroup` to findings. They perform no I/O."""
