"""The pure core: decisions as functions over frozen values, with no input, output, time or chance."""
