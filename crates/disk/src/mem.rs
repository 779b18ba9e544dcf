//! A disk in memory: sparse, so that a terabyte volume costs what is written to it.
