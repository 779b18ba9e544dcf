//! Time and waiting: one code for live mounts and virtual time
