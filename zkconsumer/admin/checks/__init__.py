"""The checks of `doctor`: functions from an `ExaminedGroup` to findings. The checks perform no
I/O."""
