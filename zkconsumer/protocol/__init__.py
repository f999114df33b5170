"""The pure core: decisions as functions over frozen values; no input or output, time or chance."""
