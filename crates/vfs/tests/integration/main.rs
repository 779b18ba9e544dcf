//! Calls on a volume, over a small format in memory (`common`).
//!
//! One program, so that it is linked once.

mod bypass;
mod co_read;
mod common;
mod data;
mod durability;
mod last_block;
mod model;
mod names;
mod sectors;
mod space;
