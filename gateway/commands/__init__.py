"""The commands of `trellis`, but for `serve`: one module for each thing that people come to do."""
