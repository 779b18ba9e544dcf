//! Golden volumes are clean, and each damage is found by its name.
