"""Settings: their models, how they are read and checked, and the limits that follow from them."""
